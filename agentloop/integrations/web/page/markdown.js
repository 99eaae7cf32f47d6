/**
 * Markdown to HTML, in blocks, at a cost that follows what was added.
 *
 * The HTML is not safe by itself: `sanitizer.js` decides what reaches the document.
 */

import MarkdownIt from "./vendor/markdown-it.min.js";

const SCHEMES = /^(?:https?:\/\/|mailto:)/i;

/** Whether an address may be a link of an answer. */
export function isLinkable(url) {
  return SCHEMES.test(url.trim());
}

function createParser() {
  const md = new MarkdownIt("default", { html: false, linkify: true, typographer: false, breaks: false });
  // Names of files ("main.py", "README.md") are hosts of real countries; only what has a scheme is meant as a link.
  md.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
  md.validateLink = isLinkable;
  md.renderer.rules.image = (tokens, i) => {
    const { escapeHtml } = md.utils;
    const label = tokens[i].content || "image";
    return `<a href="${escapeHtml(tokens[i].attrGet("src") ?? "")}" title="Image">${escapeHtml(label)}</a>`;
  };
  // The page's policy allows no style attribute, which is how the parser aligns the cells of a table.
  md.core.ruler.push("align_by_attribute", ({ tokens }) => {
    for (const token of tokens) {
      const style = token.attrGet("style");
      if (style === null) continue;
      token.attrs = token.attrs.filter(([name]) => name !== "style");
      const side = /^text-align:(left|right|center)$/.exec(style);
      if (side) token.attrSet("align", side[1]);
    }
  });
  return md;
}

const parser = createParser();

/** A whole text as HTML. */
export function renderMarkdown(text) {
  return parser.render(text);
}

/** A text as the HTML of its top-level blocks. */
export function renderBlocks(text) {
  return split(text, {}).map((block) => block.html);
}

function split(text, env) {
  const tokens = parser.parse(text, env);
  const blocks = [];
  let group = [];
  let depth = 0;
  for (const token of tokens) {
    group.push(token);
    depth += token.nesting;
    if (depth === 0) {
      blocks.push({ line: group[0].map?.[0] ?? 0, html: parser.renderer.render(group, parser.options, env) });
      group = [];
    }
  }
  return blocks;
}

/**
 * A text that grows, as blocks.
 *
 * Only the last two blocks are made again at each step: what comes later can still change them, and leaves those
 * before alone. What the end of a text may change at its beginning (a link whose target is defined last) is left to
 * `finish`.
 */
export class GrowingMarkdown {
  #text = "";
  #base = 0; // where the blocks begin that are made again
  #kept = 0; // how many come before
  #env = {}; // what those have defined

  /** Takes the whole text so far. Returns `{kept, blocks}`: the first `kept` blocks stand, `blocks` follow them. */
  update(given) {
    const text = plainLines(given);
    if (!text.startsWith(this.#text.slice(0, this.#base))) this.#restart();
    this.#text = text;
    const kept = this.#kept;
    const tail = text.slice(this.#base);
    const blocks = split(tail, { references: { ...this.#env.references } });
    const html = blocks.map((block) => block.html);
    if (blocks.length > 2) {
      const stable = blocks.length - 2;
      const end = offsetOfLine(tail, blocks[stable].line);
      parser.parse(tail.slice(0, end), this.#env); // for its definitions
      this.#base += end;
      this.#kept += stable;
    }
    return { kept, blocks: html };
  }

  /** All blocks of the complete text. */
  finish(text) {
    this.#restart();
    return { kept: 0, blocks: renderBlocks(text) };
  }

  #restart() {
    this.#base = 0;
    this.#kept = 0;
    this.#env = {};
  }
}

function plainLines(text) {
  return text.includes("\r") ? text.replace(/\r\n?/g, "\n") : text;
}

function offsetOfLine(text, line) {
  let at = 0;
  for (; line > 0; line--) at = text.indexOf("\n", at) + 1;
  return at;
}
