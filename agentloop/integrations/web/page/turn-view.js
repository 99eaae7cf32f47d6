/** One turn in the document. */

import { CallView } from "./call-view.js";
import { arrange, copyButton, h, setText } from "./dom.js";
import { panelFor } from "./panels.js";
import { Prose } from "./prose.js";
import { answerOf } from "./turn.js";
import { grouped, outcomeWords, seconds, usedOf } from "./words.js";

export class TurnView {
  #act;
  #view = null;
  #parts = new Map(); // what a person said, and attempts, by key
  #body = h("div", { class: "turn-body" });
  #working = h("p", { class: "working" }, h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i")), h("span", { class: "working-words" }));
  #outcome = h("p", { class: "outcome", testid: "outcome" });
  #panel = null; // {key, element}
  #usageKey = "";
  #usage = h("span", { class: "usage", testid: "usage" });
  #foot;

  /** @param act - `(name, body) -> Promise<boolean>`; true when the server took it. */
  constructor(act) {
    this.#act = act;
    this.#foot = h("footer", { class: "turn-foot" }, this.#usage, copyButton(() => answerOf(this.#view), "Copy the answer"));
    this.element = h("article", { class: "turn", testid: "turn" }, this.#body);
  }

  update(view) {
    if (view === this.#view) return;
    this.#view = view;
    const { dataset } = this.element;
    dataset.state = view.state;
    dataset.outcome = view.outcome ?? "";
    dataset.turn = view.id;
    arrange(this.#body, [...this.#story(), ...this.#ending()]);
  }

  /** What was said and answered, in its order: words that came while the turn went on stand before the next attempt. */
  #story() {
    const nodes = [];
    const { said, attempts } = this.#view;
    let next = 0;
    const sayUpTo = (begun) => {
      for (; next < said.length && (said[next].after ?? 0) <= begun; next++) nodes.push(this.#saidNode(next));
    };
    for (const [i, attempt] of attempts.entries()) {
      sayUpTo(i);
      nodes.push(this.#attemptNode(attempt));
    }
    sayUpTo(Infinity);
    return nodes;
  }

  #saidNode(i) {
    const key = `said ${i}`;
    const { text, images } = this.#view.said[i];
    let part = this.#parts.get(key);
    if (!part) {
      part = { element: h("div", { class: "said", testid: "said" }, h("span", { class: "offscreen" }, "You: ")), text: h("span", { class: "said-text" }) };
      part.element.append(part.text);
      this.#parts.set(key, part);
    }
    const count = Array.isArray(images) ? images.length : (images ?? 0);
    const note = count ? `${text ? "\n" : ""}[${count === 1 ? "one image" : `${count} images`}]` : "";
    setText(part.text, (text ?? "") + note);
    return part.element;
  }

  #attemptNode(attempt) {
    let part = this.#parts.get(attempt.attempt_id);
    if (!part) this.#parts.set(attempt.attempt_id, (part = new AttemptView()));
    part.update(attempt, this.#view.state === "running");
    return part.element;
  }

  #ending() {
    const view = this.#view;
    const nodes = [];
    const working = this.#workingWords();
    if (working !== null) {
      setText(this.#working.lastChild, working);
      nodes.push(this.#working);
    }
    const ended = view.state === "ended" ? outcomeWords(view) : null;
    if (ended) {
      this.#outcome.replaceChildren(ended, ...(view.reason && ![view.outcome, "stop"].includes(view.reason) ? [" ", h("code", {}, view.reason)] : []));
      nodes.push(this.#outcome);
    } else if (view.rejected && view.state === "running") {
      this.#outcome.replaceChildren(`A request was not sent: ${view.rejected.limit} allows ${view.rejected.allowed}.`);
      nodes.push(this.#outcome);
    }
    if (view.redacted) nodes.push(h("p", { class: "muted small" }, "The texts of this turn were removed."));
    const panel = panelFor(view, this.#act);
    if (panel?.key !== this.#panel?.key) this.#panel = panel && { key: panel.key, element: panel.make() };
    if (this.#panel) nodes.push(this.#panel.element);
    const usage = usageParts(view);
    const key = usage.join();
    if (key !== this.#usageKey) this.#usage.replaceChildren(...usage.map((part) => h("span", {}, part)));
    this.#usageKey = key;
    this.#foot.classList.toggle("bare", view.state !== "ended" || !answerOf(view));
    if (usage.length) nodes.push(this.#foot);
    return nodes;
  }

  /** What goes on while nothing is to be seen of it, or null. */
  #workingWords() {
    const { state, notice, attempts, ending, lost, cancelling } = this.#view;
    if (state === "sending" && cancelling) return "Cancelling…";
    if (state === "sending") return lost ? "No answer yet. Trying again…" : "Sending…";
    if (state !== "running" || ending) return null;
    if (cancelling) return "Cancelling…";
    if (notice) return `The model could not be asked (${notice.code}). Asking again in ${seconds(notice.delay_ms)}…`;
    const newest = attempts.at(-1);
    const calls = newest?.calls.filter((call) => call.state === "started") ?? [];
    if (calls.length) return calls.length === 1 ? `Running ${calls[0].tool}…` : `Running ${calls.length} tools…`;
    if (newest?.state === "open" && newest.text) return null;
    return "Thinking…";
  }
}

function usageParts({ usage, budget, state }) {
  if (state === "sending") return [];
  const parts = [];
  if (usage) parts.push(`${grouped(usage.input_tokens)} tokens in, ${grouped(usage.output_tokens)} out`);
  const calls = usedOf(budget?.model_calls);
  if (calls) parts.push(`model calls ${calls}`);
  if (budget?.tool_calls?.used) parts.push(`tools ${usedOf(budget.tool_calls)}`);
  if (budget?.tokens && budget.tokens.limit !== null && budget.tokens.limit !== undefined) parts.push(`tokens ${usedOf(budget.tokens)}`);
  return parts;
}

class AttemptView {
  #attempt = null;
  #running = null;
  #prose = null;
  #calls = new Map();
  #callList = h("div", { class: "calls" });
  #reasoning = null;

  constructor() {
    this.element = h("div", { class: "attempt" });
  }

  update(attempt, running) {
    if (attempt === this.#attempt && running === this.#running) return;
    this.#attempt = attempt;
    this.#running = running;
    this.element.dataset.state = attempt.state;
    arrange(this.element, this.#nodes());
  }

  #nodes() {
    const { state, text, refusal, missing, reasoning, withdrawn, calls } = this.#attempt;
    const nodes = [];
    if (reasoning) nodes.push(this.#reasoningNode());
    if ((withdrawn && state !== "replied") || state === "failed" || state === "abandoned") nodes.push(this.#withdrawnNode());
    if (missing) nodes.push(h("p", { class: "muted small" }, "The beginning of this preview is not kept any more; it is shown when the answer is complete."));
    if (text) {
      const growing = state === "open" && this.#running;
      this.#prose ??= new Prose({ "data-testid": "answer" });
      this.#prose.show(text, !growing);
      this.#prose.element.classList.toggle("growing", growing);
      this.#prose.element.classList.toggle("unconfirmed", state === "open" && !growing);
      nodes.push(this.#prose.element);
      if (state === "open" && !growing) nodes.push(h("p", { class: "muted small" }, "This text is a preview; it was not confirmed."));
    } else this.#prose = null;
    if (refusal) nodes.push(h("p", { class: "refusal", testid: "refusal" }, refusal));
    if (calls.length) {
      arrange(this.#callList, calls.map((call) => this.#callNode(call)));
      nodes.push(this.#callList);
    }
    return nodes;
  }

  #callNode(call) {
    const key = `${call.exchange}.${call.position}`;
    let view = this.#calls.get(key);
    if (!view) this.#calls.set(key, (view = new CallView()));
    view.update(call);
    return view.element;
  }

  #reasoningNode() {
    this.#reasoning ??= h("details", { class: "reasoning", testid: "reasoning" }, h("summary", {}, "Reasoning"), h("p", {}));
    setText(this.#reasoning.lastChild, this.#attempt.reasoning);
    return this.#reasoning;
  }

  #withdrawnNode() {
    const { withdrawn, code, state, may_have_been_processed: maybe } = this.#attempt;
    let words = state === "abandoned" ? "This request was given up; it brought no answer." : "This request brought no answer.";
    if (withdrawn) words = "What was shown here is not an answer, and was taken back.";
    return h(
      "p",
      { class: "withdrawn", testid: "withdrawn" },
      h("strong", {}, withdrawn ? "Withdrawn" : "No answer"),
      code && h("code", {}, code),
      h("span", {}, words, maybe ? " The model may have worked on it." : ""),
    );
  }
}
