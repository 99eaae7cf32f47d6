/** The list of conversations. */

import { h, icon, setText } from "./dom.js";
import { when } from "./words.js";

export class Sidebar {
  #list;
  #empty;
  #onDelete;
  #rows = new Map();

  constructor({ list, empty, onDelete }) {
    this.#list = list;
    this.#empty = empty;
    this.#onDelete = onDelete;
  }

  /** Shows conversations, in their order; `current` is the one that is open. */
  show(conversations, current) {
    const nodes = conversations.map((item) => this.#row(item, item.id === current));
    for (const [i, node] of nodes.entries()) {
      if (this.#list.children[i] !== node) this.#list.insertBefore(node, this.#list.children[i] ?? null);
    }
    const kept = new Set(conversations.map((item) => item.id));
    for (const [id, row] of this.#rows) {
      if (kept.has(id)) continue;
      row.element.remove();
      this.#rows.delete(id);
    }
    this.#empty.hidden = conversations.length > 0;
  }

  #row(item, current) {
    let row = this.#rows.get(item.id);
    if (!row) {
      const title = h("span", { class: "item-title" });
      const time = h("time", { class: "item-time" });
      const link = h("a", { href: `#/c/${item.id}` }, title, time);
      const remove = h("button", { type: "button", class: "quiet round remove", testid: "delete-conversation" }, icon("trash"));
      row = { title, time, link, remove, item };
      row.element = h("li", { testid: "conversation", "data-id": item.id }, link, remove);
      remove.addEventListener("click", () => this.#onDelete(row.item));
      this.#rows.set(item.id, row);
    }
    row.item = item;
    const name = item.title || "Untitled";
    setText(row.title, name);
    setText(row.time, item.live ? "now" : when(item.updated_at_ms));
    row.time.dateTime = new Date(item.updated_at_ms).toISOString();
    row.element.classList.toggle("live", Boolean(item.live));
    row.remove.setAttribute("aria-label", `Delete “${name}”`);
    row.link.title = name;
    if (current) row.link.setAttribute("aria-current", "page");
    else row.link.removeAttribute("aria-current");
    return row.element;
  }
}
