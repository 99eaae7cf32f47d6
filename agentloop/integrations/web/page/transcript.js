/** The turns in the document: drawn once a frame at most, and scrolled along while the reader is at the end. */

import { TurnView } from "./turn-view.js";

const NEAR_PX = 64;
const PANEL_PX = 48;
const CHEAP_MS = 8;

export class Transcript {
  #log;
  #turns;
  #jump;
  #act;
  #views = new Map();
  #dirty = new Map();
  #frame = 0;
  #timer = 0;
  #cost = 0;
  #atEnd = true;
  #asked = new WeakSet(); // panels that were brought into view

  /** @param act - `(turn id, name, body) -> Promise<boolean>`. */
  constructor({ log, turns, jump, act }) {
    this.#log = log;
    this.#turns = turns;
    this.#jump = jump;
    this.#act = act;
    log.addEventListener("scroll", () => this.#look(), { passive: true });
    jump.addEventListener("click", () => {
      this.toEnd();
      log.focus({ preventScroll: true });
    });
    new ResizeObserver(() => this.#follow()).observe(log);
  }

  /** Shows these turns, in their order, and no other. */
  list(views) {
    const kept = new Set(views.map((view) => view.id));
    for (const [id, view] of this.#views) {
      if (kept.has(id)) continue;
      view.element.remove();
      this.#views.delete(id);
      this.#dirty.delete(id);
    }
    for (const [i, view] of views.entries()) {
      let shown = this.#views.get(view.id);
      if (!shown) this.#views.set(view.id, (shown = new TurnView((name, body) => this.#act(view.id, name, body))));
      if (this.#turns.children[i] !== shown.element) this.#turns.insertBefore(shown.element, this.#turns.children[i] ?? null);
      this.#dirty.set(view.id, view);
    }
    this.#draw();
  }

  /** Shows a turn's new state at the next frame; later where frames have become dear. */
  update(view) {
    this.#dirty.set(view.id, view);
    if (this.#frame || this.#timer) return;
    const draw = () => {
      this.#timer = 0;
      this.#frame = requestAnimationFrame(() => this.#draw());
    };
    if (this.#cost > CHEAP_MS) this.#timer = setTimeout(draw, this.#cost * 4);
    else draw();
  }

  toEnd() {
    this.#atEnd = true;
    this.#follow();
  }

  #draw() {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    this.#frame = this.#timer = 0;
    const began = performance.now();
    for (const [id, view] of this.#dirty) this.#views.get(id)?.update(view);
    this.#dirty.clear();
    this.#follow();
    this.#cost = performance.now() - began;
  }

  #follow() {
    const panel = this.#turns.lastElementChild?.querySelector(".panel");
    if (this.#atEnd && panel && panel.offsetHeight > this.#log.clientHeight - PANEL_PX) {
      // It does not fit: it is read from its beginning.
      if (!this.#asked.has(panel)) this.#log.scrollTop += panel.getBoundingClientRect().top - this.#log.getBoundingClientRect().top - PANEL_PX / 2;
      this.#asked.add(panel);
    } else if (this.#atEnd) this.#log.scrollTop = this.#log.scrollHeight;
    this.#look();
  }

  #look() {
    const { scrollTop, scrollHeight, clientHeight } = this.#log;
    this.#atEnd = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    this.#jump.hidden = this.#atEnd;
  }
}
