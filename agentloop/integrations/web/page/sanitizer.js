/** What of an answer's HTML may reach the document. Everything else is dropped, its text kept. */

import "./vendor/purify.min.js";
import { isLinkable } from "./markdown.js";

const { DOMPurify } = globalThis;

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "class", "href", "rel", "start", "target", "title"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_TRUSTED_TYPE: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName === "A") {
    if (!isLinkable(node.getAttribute("href") ?? "")) node.removeAttribute("href");
    node.setAttribute("rel", "noopener noreferrer nofollow");
    node.setAttribute("target", "_blank");
  }
  // A class names the language of a code block, and nothing of the page's own.
  if (node.hasAttribute("class") && !(node.nodeName === "CODE" && /^language-[^\s]{1,40}$/.test(node.className))) {
    node.removeAttribute("class");
  }
});

/** HTML as nodes that may be put into the document. */
export function safeNodes(html) {
  const template = document.createElement("template");
  template.innerHTML = DOMPurify.sanitize(html, ALLOWED);
  return [...template.content.childNodes];
}
