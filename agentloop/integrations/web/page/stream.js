/**
 * Server-sent events over fetch: a decoder, and a reader that comes back after every cut.
 *
 * `EventSource` is not used: it tells no status of a refusal, sends no id on its first request, and cannot be
 * watched for silence.
 */

import { ApiError, Unreachable } from "./api.js";

const MAX_CHARS = 64 * 1024 * 1024;

/** Text in, events out. Where the text is cut changes nothing. Source: WHATWG HTML, "Interpreting an event stream". */
export class EventDecoder {
  #tail = "";
  #afterReturn = false;
  #data = [];
  #size = 0;
  #id = null;
  #type = "message";

  /** Takes the next text; returns the events it completes, as `{id, type, data}`; `id` is null where none was set yet. */
  feed(text) {
    if (this.#afterReturn && text.startsWith("\n")) text = text.slice(1);
    if (text) this.#afterReturn = text.endsWith("\r");
    const lines = (this.#tail + text).split(/\r\n|\n|\r/);
    this.#tail = lines.pop();
    if (this.#tail.length + this.#size > MAX_CHARS) throw new Error(`event: expected at most ${MAX_CHARS} characters`);
    const events = [];
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) events.push({ id: this.#id, type: this.#type, data: this.#data.join("\n") });
        this.#type = "message";
        this.#data = [];
        this.#size = 0;
      } else this.#field(line);
    }
    return events;
  }

  #field(line) {
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (name === "data") {
      this.#data.push(value);
      this.#size += value.length;
    } else if (name === "event") this.#type = value || "message";
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }
}

/** Milliseconds to wait before the next attempt, after `failures` in a row: 0.5 s doubled up to 15 s, and jitter. */
export function backoff(failures, random = Math.random) {
  return Math.min(15_000, 500 * 2 ** Math.min(failures - 1, 10)) * (0.75 + random() / 2);
}

/** Time and the network as a browser has them. */
export const BROWSER = {
  /** Resolves after a time, when the network is back, or when the signal aborts; whichever is first. */
  wait(ms, signal) {
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        removeEventListener("online", done);
        signal?.removeEventListener("abort", done);
        resolve();
      };
      const timer = setTimeout(done, ms);
      addEventListener("online", done);
      signal?.addEventListener("abort", done);
      if (signal?.aborted) done();
    });
  },
  /** Calls back once when the network is back or `ms` have passed; returns how to stop that. */
  watch(ms, lost) {
    const timer = setTimeout(lost, ms);
    addEventListener("online", lost);
    return () => {
      clearTimeout(timer);
      removeEventListener("online", lost);
    };
  },
  random: Math.random,
};

/**
 * Reads a stream to its `end`, through every cut.
 *
 * @param open - `(lastEventId, signal) -> Promise<Response>`; throws ApiError where the server refuses.
 * @param onMessage - takes each message and its event id; returning true ends the reading.
 * @param onState - told `"open"`, and `"lost"` with the wait in ms, as the connection changes.
 * @param lastEventId - where to go on; null reads from the start.
 * @param signal - ends the reading; the promise resolves.
 * @param stallMs - silence after which a connection counts as dead. The server writes comments more often.
 * @throws ApiError when the server refuses, and a later attempt would bring no more (4xx, but 408 and 429). What
 *   `onMessage` throws.
 */
export async function follow({ open, onMessage, onState, lastEventId = null, signal, stallMs = 45_000, world = BROWSER }) {
  let failures = 0;
  let last = lastEventId;
  while (!signal.aborted) {
    let asked = 0;
    try {
      const over = await readOnce({
        open: (cut) => open(last, cut),
        onMessage: (message, id) => {
          failures = 0;
          if (id) last = id;
          return onMessage(message, id);
        },
        onOpen: () => onState("open"),
        signal,
        stallMs,
        world,
      });
      if (over) return;
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Unreachable || (error instanceof ApiError && !error.final))) throw error;
      asked = error.retryAfterMs ?? 0;
    }
    if (signal.aborted) return;
    failures++;
    const wait = Math.max(asked, backoff(failures, world.random));
    onState("lost", wait);
    await world.wait(wait, signal);
  }
}

/** One connection. True: it came to its end. False: it was cut. */
async function readOnce({ open, onMessage, onOpen, signal, stallMs, world }) {
  const cut = new AbortController();
  const give = () => cut.abort();
  signal.addEventListener("abort", give);
  let unwatch = world.watch(stallMs, give);
  try {
    const response = await open(cut.signal);
    onOpen();
    const decoder = new EventDecoder();
    const text = new TextDecoder();
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await lostIfFails(reader.read());
      if (done) return false;
      unwatch();
      unwatch = world.watch(stallMs, give);
      for (const event of decoder.feed(text.decode(value, { stream: true }))) {
        if (event.type === "problem") return false; // coming back is answered with what went wrong
        if (onMessage(read(event.data), event.id)) {
          cut.abort();
          return true;
        }
      }
    }
  } finally {
    unwatch();
    signal.removeEventListener("abort", give);
  }
}

/** What breaks a connection, as the loss that it is. */
async function lostIfFails(reading) {
  try {
    return await reading;
  } catch (error) {
    throw new Unreachable(error);
  }
}

function read(data) {
  try {
    return JSON.parse(data);
  } catch (error) {
    throw new Unreachable(error); // what is no JSON was damaged on its way
  }
}
