/** The arguments of a call: set out for reading where that changes no value, and always exact on demand. */

import { copyButton, h, setText } from "./dom.js";
import { prettyJson } from "./words.js";

/** An element that shows the raw text of a call's arguments. */
export function argumentsBlock(raw, label = "Arguments") {
  if (raw === null || raw === undefined) return h("p", { class: "muted" }, "The arguments are shown when the turn is read again.");
  const pretty = prettyJson(raw);
  const pre = h("pre", { class: "raw", tabindex: "0", "data-testid": "arguments", "aria-label": label }, pretty ?? raw);
  let exact = pretty === null;
  const toggle = h("button", { type: "button", class: "quiet", "aria-pressed": "false", "data-testid": "exact" }, "Exact text");
  toggle.addEventListener("click", () => {
    exact = !exact;
    setText(pre, exact ? raw : pretty);
    toggle.setAttribute("aria-pressed", String(exact));
  });
  return h(
    "div",
    { class: "block" },
    h("div", { class: "block-head" }, h("span", {}, label), pretty !== null && pretty !== raw && toggle, copyButton(() => raw, `Copy: ${label}`)),
    pre,
  );
}

/** An element that shows what a tool gave back. */
export function outputBlock(text, label) {
  return h(
    "div",
    { class: "block" },
    h("div", { class: "block-head" }, h("span", {}, label), copyButton(() => text, `Copy: ${label}`)),
    h("pre", { class: "raw", tabindex: "0", "data-testid": "output", "aria-label": label }, text),
  );
}
