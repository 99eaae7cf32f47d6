/** The arguments of a call: set out for reading where that changes no value, and always exact on demand. */

import { copyButton, h } from "./dom.js";
import { stringPieces, unseenPieces } from "./unseen.js";
import { prettyJson } from "./words.js";

/** An element that shows the raw text of a call's arguments. */
export function argumentsBlock(raw, label = "Arguments") {
  if (raw === null || raw === undefined) return h("p", { class: "muted" }, "The arguments are shown when the turn is read again.");
  const pretty = prettyJson(raw);
  const pre = h("pre", { class: "raw", tabindex: "0", "data-testid": "arguments", "aria-label": label }, nodes(pretty ?? raw));
  const unseen = pre.querySelectorAll(".unseen").length;
  let exact = pretty === null;
  const toggle = h("button", { type: "button", class: "quiet", "aria-pressed": "false", "data-testid": "exact" }, "Exact text");
  toggle.addEventListener("click", () => {
    exact = !exact;
    pre.replaceChildren(...nodes(exact ? raw : pretty));
    toggle.setAttribute("aria-pressed", String(exact));
  });
  return h(
    "div",
    { class: "block" },
    h("div", { class: "block-head" }, h("span", {}, label), pretty !== null && pretty !== raw && toggle, copyButton(() => raw, `Copy: ${label}`)),
    unseen > 0 && h("p", { class: "unseen-note", testid: "unseen" }, unseenWords(unseen)),
    pre,
  );
}

function unseenWords(count) {
  if (count === 1) return "One character in here cannot be seen; it is written out as \\u….";
  return `${count} characters in here cannot be seen; they are written out as \\u….`;
}

/** The text as nodes: nothing in it is hidden, and no string of it moves what stands beside it. */
function nodes(text) {
  return stringPieces(text).flatMap((piece) => {
    const parts = unseenPieces(piece.text).map((part) => (part.unseen ? h("mark", { class: "unseen" }, part.text) : part.text));
    return piece.string ? [h("bdi", {}, ...parts)] : parts;
  });
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
