/** Markdown in the document: blocks that stand are left alone, so a selection in them lasts. */

import { copyButton, h } from "./dom.js";
import { GrowingMarkdown } from "./markdown.js";
import { safeNodes } from "./sanitizer.js";

export class Prose {
  #markdown = new GrowingMarkdown();
  #blocks = []; // {html, nodes}
  #text = null;
  #whole = false;

  constructor(attributes = {}) {
    this.element = h("div", { class: "prose", ...attributes });
  }

  /** Shows a text; `whole` when nothing follows it. */
  show(text, whole) {
    if (text === this.#text && whole === this.#whole) return;
    this.#text = text;
    this.#whole = whole;
    const { kept, blocks } = whole ? this.#markdown.finish(text) : this.#markdown.update(text);
    this.#place(kept, blocks);
  }

  #place(kept, blocks) {
    for (const [i, html] of blocks.entries()) {
      const at = kept + i;
      const shown = this.#blocks[at];
      if (shown?.html === html) continue;
      const nodes = safeNodes(html).map(decorated);
      const before = shown ? shown.nodes[0] : null;
      if (before) before.before(...nodes);
      else this.element.append(...nodes);
      for (const node of shown?.nodes ?? []) node.remove();
      this.#blocks[at] = { html, nodes };
    }
    for (const extra of this.#blocks.splice(kept + blocks.length)) for (const node of extra.nodes) node.remove();
  }
}

/** A block as it is shown: code has its language and a copy button, a table can be scrolled. */
function decorated(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return node;
  if (node.tagName === "PRE") return codeBlock(node);
  if (node.tagName === "TABLE") return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, node);
  for (const inner of node.querySelectorAll("pre")) inner.replaceWith(codeBlock(inner.cloneNode(true)));
  return node;
}

function codeBlock(pre) {
  const code = pre.querySelector("code");
  const language = /^language-(.+)$/.exec(code?.className ?? "")?.[1] ?? "";
  pre.tabIndex = 0; // so that the keys can scroll it
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, h("span", {}, language || "code"), copyButton(() => pre.textContent, "Copy the code")),
    pre,
  );
}
