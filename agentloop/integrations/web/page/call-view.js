/** One tool call in the document. */

import { argumentsBlock, outputBlock } from "./arguments.js";
import { arrange, h, icon, setText } from "./dom.js";
import { withUnseen } from "./unseen.js";
import { callWords, grouped, seconds } from "./words.js";

export class CallView {
  #call = null;
  #name = h("span", { class: "tool" });
  #line = h("span", { class: "line" });
  #state = h("span", { class: "call-state" });
  #body = h("div", { class: "call-body" });
  #arguments = null; // {raw, element}: what a person has opened or selected in there stays

  constructor() {
    this.element = h(
      "details",
      { class: "call", "data-testid": "tool-call" },
      h("summary", {}, h("span", { class: "dot" }), this.#name, this.#line, this.#state, icon("chevron")),
      this.#body,
    );
  }

  update(call) {
    if (call === this.#call) return;
    this.#call = call;
    this.element.dataset.state = call.state;
    this.element.dataset.status = call.status ?? "";
    setText(this.#name, call.tool);
    setText(this.#line, oneLine(call.arguments));
    setText(this.#state, this.#said());
    arrange(this.#body, this.#parts());
  }

  #said() {
    const { progress, duration_ms: took } = this.#call;
    if (progress) {
      const done = progress.fraction === null ? "" : ` ${Math.round(progress.fraction * 100)} %`;
      return `${progress.message}${done}`;
    }
    const words = callWords(this.#call);
    if (this.#call.state === "done") return took ? `${words}, ${seconds(took)}` : words;
    return this.#call.code ? `${words} (${this.#call.code})` : words;
  }

  #parts() {
    const call = this.#call;
    if (this.#arguments?.raw !== call.arguments) this.#arguments = { raw: call.arguments, element: argumentsBlock(call.arguments) };
    const parts = [this.#arguments.element];
    if (call.converted?.length) parts.push(h("p", { class: "muted" }, `Given to the tool in another type: ${call.converted.join("; ")}.`));
    if (call.executions > 1) parts.push(h("p", { class: "muted" }, `Run ${call.executions} times.`));
    if (call.output) parts.push(outputBlock(call.output, call.status === "error" ? "Error output" : "Output"));
    else if (call.state === "done") parts.push(h("p", { class: "muted" }, "No output."));
    if (call.kept_bytes) parts.push(h("p", { class: "muted" }, `The full output, ${grouped(call.kept_bytes)} bytes, is kept on the server.`));
    if (call.code) parts.push(h("p", { class: "muted" }, "Reason: ", h("code", {}, call.code)));
    return parts;
  }
}

function oneLine(text) {
  return withUnseen((text ?? "").slice(0, 400).replace(/[ \n\t]+/g, " "));
}
