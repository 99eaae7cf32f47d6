/** The field a person writes in. */

import { setText } from "./dom.js";

export class Composer {
  #form;
  #text;
  #send;
  #cancel;
  #reason;
  #onDraft;
  #onLeft;
  #wait = null; // {until, timer}
  #state = { busy: false, blocked: null, unread: false };

  /**
   * @param onSend - takes the text. onCancel - the turn that runs is not wanted any more. onDraft - takes what is
   *   written, whenever that changes. onLeft - the part that had the focus is there no more.
   */
  constructor({ form, text, send, cancel, reason, onSend, onCancel, onDraft, onLeft }) {
    this.#form = form;
    this.#text = text;
    this.#send = send;
    this.#cancel = cancel;
    this.#reason = reason;
    this.#onDraft = onDraft;
    this.#onLeft = onLeft;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const words = text.value.trim();
      if (!words || this.#send.disabled || this.#state.busy) return;
      this.text = "";
      onSend(words);
    });
    cancel.addEventListener("click", (event) => {
      if (event.detail < 2) onCancel(); // the second click of a double one was meant for the button that was here before
    });
    text.addEventListener("input", () => {
      this.#grow();
      this.#tell();
      onDraft(text.value);
    });
    text.addEventListener("keydown", (event) => {
      // Code 229: an input method takes the key, in browsers that end the composition before they tell the key.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      form.requestSubmit();
    });
  }

  get text() {
    return this.#text.value;
  }

  /** Sets what is written; it is kept as the draft. */
  set text(words) {
    this.#text.value = words;
    this.#onDraft(words);
    this.#grow();
    this.#tell();
  }

  focus() {
    this.#text.focus({ preventScroll: true });
  }

  /** @param busy - a turn runs. blocked - why no text is taken, or null. unread - what was said before is not here yet. */
  show({ busy, blocked, unread = false, cancelling = false }) {
    const focused = this.#form.contains(document.activeElement) ? document.activeElement : null;
    this.#state = { busy, blocked, unread };
    this.#cancel.hidden = !busy;
    this.#cancel.disabled = cancelling;
    this.#send.hidden = busy;
    this.#text.disabled = blocked !== null;
    this.#form.classList.toggle("blocked", blocked !== null);
    this.#tell();
    if (focused && (focused.hidden || focused.disabled)) this.#onLeft();
  }

  /** Takes no text for a time that the server asked for. */
  holdOff(ms) {
    clearInterval(this.#wait?.timer);
    this.#wait = { until: Date.now() + ms, timer: setInterval(() => this.#tell(), 1000) };
    this.#tell();
  }

  #tell() {
    let words = this.#state.blocked ?? "";
    let held = false;
    if (this.#wait) {
      const left = Math.ceil((this.#wait.until - Date.now()) / 1000);
      if (left > 0) {
        held = true;
        words = `You can send again in ${left} s.`;
      } else {
        clearInterval(this.#wait.timer);
        this.#wait = null;
      }
    }
    setText(this.#reason, words);
    this.#send.disabled = held || this.#state.unread || this.#state.blocked !== null || this.#text.value.trim() === "";
  }

  #grow() {
    this.#text.style.height = "auto";
    this.#text.style.height = `${this.#text.scrollHeight}px`;
  }
}
