/**
 * What a person has written: drafts, and the text of each conversation that is under way to the server.
 *
 * The id of a turn is minted and kept before its text is sent, so a request whose answer was lost, or whose page was
 * reloaded, is repeated under the same id: the server joins it to the turn, and begins no second one.
 */

import { ApiError, Unreachable } from "./api.js";
import { backoff } from "./stream.js";

const DRAFT = "agentloop.draft.";
const SENDING = "agentloop.sending.";

export class Outbox {
  #storage;
  #held = new Map(); // for where storage is refused: a private window, a full disk

  constructor(storage) {
    this.#storage = storage;
  }

  draft(conversation) {
    return this.#get(DRAFT + (conversation ?? "")) ?? "";
  }

  keepDraft(conversation, text) {
    this.#set(DRAFT + (conversation ?? ""), text || null);
  }

  /** Puts a text back into a conversation's draft, before what was written since. */
  giveBack(conversation, text) {
    const draft = this.draft(conversation);
    this.keepDraft(conversation, draft.trim() ? `${text}\n\n${draft}` : text);
  }

  /** The text of a conversation that is under way, as `{conversation, id, agent, text}`; null where there is none. */
  sending(conversation) {
    const kept = this.#get(SENDING + conversation);
    try {
      const entry = JSON.parse(kept);
      return typeof entry?.id === "string" && typeof entry.text === "string" ? entry : null;
    } catch {
      return null; // others may write here, too
    }
  }

  keepSending(entry) {
    this.#set(SENDING + entry.conversation, JSON.stringify(entry));
  }

  dropSending(entry) {
    if (this.sending(entry.conversation)?.id === entry.id) this.#set(SENDING + entry.conversation, null);
  }

  #get(key) {
    try {
      return this.#storage.getItem(key) ?? this.#held.get(key) ?? null;
    } catch {
      return this.#held.get(key) ?? null;
    }
  }

  #set(key, value) {
    if (value === null) this.#held.delete(key);
    else this.#held.set(key, value);
    try {
      if (value === null) this.#storage.removeItem(key);
      else this.#storage.setItem(key, value);
    } catch {
      // it is held in memory until the page is left
    }
  }
}

/**
 * Sends one text until the server has answered; every attempt has the same id.
 *
 * @param begin - `(entry) -> Promise<Turn>`.
 * @param onLost - told before each wait, in ms, that an answer was lost.
 * @throws ApiError when the server refuses. Resolves to null when the signal aborts.
 */
export async function deliver({ begin, entry, onLost, wait, signal, random = Math.random }) {
  for (let failures = 1; !signal.aborted; failures++) {
    try {
      return await begin(entry);
    } catch (error) {
      const lost = error instanceof Unreachable || (error instanceof ApiError && [500, 502, 504].includes(error.status));
      if (!lost) throw error;
      if (error instanceof ApiError && failures >= 5) throw error;
      const ms = backoff(failures, random);
      onLost(ms);
      await wait(ms, signal);
    }
  }
  return null;
}
