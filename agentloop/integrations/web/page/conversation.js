/**
 * One conversation that is open: its turns, the stream of the one that goes on, and what a person does about them.
 *
 * Owns every request and timer about it; `close` ends them all. Knows nothing of the document.
 */

import { ApiError, Unreachable, mintId } from "./api.js";
import { deliver } from "./outbox.js";
import { BROWSER, backoff, follow } from "./stream.js";
import { applyMessage, fromTurn, goesOn } from "./turn.js";

const LONGEST_POLL_MS = 10_000;
const REREAD_MS = 2_000;

export class Conversation {
  #api;
  #outbox;
  #told;
  #world;
  #stallMs;
  #closed = new AbortController();
  #following = new Set();
  #sending = null;
  #unfollowed = new Map(); // timers of turns that another process has

  /**
   * @param told - `turn(view)` a turn changed, `list()` turns were added or removed, `connection("open" | "lost")`,
   *   `error(error, what)`, `settled(view)` a turn left off here, `refused(text)` a text was not taken, `kept()` one was not taken and is a
   *   draft, as the conversation had been closed.
   * @param stallMs - as of `follow`.
   * @param begun - whether the server may know it: false for one whose id was minted just now.
   */
  constructor({ id, api, outbox, told, stallMs, begun = true, world = BROWSER }) {
    this.id = id;
    this.turns = new Map();
    this.loaded = !begun;
    this.missing = false;
    this.#api = api;
    this.#outbox = outbox;
    this.#told = told;
    this.#world = world;
    this.#stallMs = stallMs;
  }

  get newest() {
    return [...this.turns.values()].at(-1) ?? null;
  }

  /** Whether the newest turn runs, or is on its way to the server. */
  get busy() {
    return this.newest?.state === "running" || this.newest?.state === "sending";
  }

  close() {
    this.#closed.abort();
    for (const timer of this.#unfollowed.values()) clearTimeout(timer);
  }

  /** Reads every turn, until the server answers. Then follows the one that runs. */
  async load() {
    for (let failures = 1; !this.#closed.signal.aborted; failures++) {
      try {
        await this.#read();
        this.#told.connection("open");
        return;
      } catch (error) {
        if (error instanceof ApiError && error.final) {
          this.#told.error(error, "read the conversation");
          return;
        }
        this.#told.connection("lost");
        await this.#world.wait(Math.max(error.retryAfterMs ?? 0, backoff(failures, this.#world.random)), this.#closed.signal);
      }
    }
  }

  /** Reads again what another page or process may have changed. Quiet where that fails. */
  async refresh() {
    if (!this.loaded || this.busy) return;
    try {
      await this.#read();
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) this.#told.error(error, "read the conversation");
    }
  }

  async #read() {
    let turns = [];
    try {
      ({ turns } = await this.#api.conversation(this.id));
      this.missing = false;
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      this.missing = true;
    }
    if (this.#closed.signal.aborted) return;
    this.loaded = true;
    const kept = this.turns;
    this.turns = new Map();
    for (const turn of turns) {
      const before = kept.get(turn.id);
      // What a stream has told of a turn that runs is newer than what was read meanwhile.
      const streamed = before && turn.state === "running" && this.#following.has(turn.id);
      this.turns.set(turn.id, streamed ? before : this.#viewOf(turn, before));
    }
    for (const [id, view] of kept) if (view.state === "sending" && !this.turns.has(id)) this.turns.set(id, view);
    this.#told.list();
    for (const view of this.turns.values()) this.#attend(view);
  }

  #viewOf(turn, before) {
    return { ...fromTurn(turn, before), read_at_ms: Date.now() };
  }

  #put(view) {
    if (this.#closed.signal.aborted) return;
    const added = !this.turns.has(view.id);
    this.turns.set(view.id, view);
    if (added) this.#told.list();
    this.#told.turn(view);
  }

  /** Does what a turn's state asks for: follow it; where another process has it, look again when its hold ends, too. */
  #attend(view, { followed = false } = {}) {
    clearTimeout(this.#unfollowed.get(view.id));
    if (view.state === "running" || (view.state === "elsewhere" && !followed)) void this.#follow(view.id);
    if (view.state === "elsewhere") {
      const wait = Math.min(LONGEST_POLL_MS, Math.max(500, (view.seconds_left ?? 2) * 1000 + 300));
      this.#unfollowed.set(view.id, setTimeout(() => void this.#look(view.id), wait));
    }
  }

  async #look(id) {
    try {
      this.#take(await this.#api.turn(this.id, id));
      this.#told.connection("open");
    } catch (error) {
      if (this.#closed.signal.aborted) return;
      if (error instanceof ApiError && error.final) return this.#told.error(error, "read the turn");
      this.#told.connection("lost");
      this.#unfollowed.set(id, setTimeout(() => void this.#look(id), Math.max(error.retryAfterMs ?? 0, 3000)));
    }
  }

  /** A Turn as the server answered it is the truth now. */
  #take(turn) {
    const view = this.#viewOf(turn, this.turns.get(turn.id));
    this.#put(view);
    this.#attend(view);
    if (view.state !== "running" && view.state !== "elsewhere") this.#told.settled(view);
  }

  async #follow(id) {
    if (this.#following.has(id)) return;
    this.#following.add(id);
    try {
      await follow({
        open: (last, signal) => this.#api.events(this.id, id, last, signal),
        lastEventId: this.turns.get(id)?.seen ?? null,
        onMessage: (message) => this.#onMessage(id, message),
        onState: (state) => this.#told.connection(state),
        signal: this.#closed.signal,
        stallMs: this.#stallMs,
        world: this.#world,
      });
    } catch (error) {
      this.#following.delete(id);
      return this.#lostSight(id, error);
    }
    this.#following.delete(id);
    const view = this.turns.get(id);
    if (!view || this.#closed.signal.aborted) return;
    this.#attend(view, { followed: true });
    if (view.state !== "running") this.#told.settled(view);
  }

  #onMessage(id, message) {
    const before = this.turns.get(id);
    if (!before) return true;
    const view = applyMessage(before, message);
    if (message.turn) view.read_at_ms = Date.now();
    if (view !== before) this.#put(view);
    return message.type === "end";
  }

  /** The stream was refused for good. What can be read is read again, from its beginning; without a user, nothing. */
  async #lostSight(id, error) {
    if (!(error instanceof ApiError)) throw error; // a fault of the page's own
    if (error.status === 401 || error.status === 403) return this.#told.error(error, "follow the turn");
    const view = this.turns.get(id);
    if (view) this.#put({ ...view, seen: null });
    await this.#world.wait(REREAD_MS, this.#closed.signal);
    if (!this.#closed.signal.aborted) await this.load();
  }

  // -- what a person does

  /** Sends a text as a new turn. Its id is kept before the first attempt. */
  async send(text, agent) {
    const kept = this.#outbox.sending(this.id);
    const again = kept && kept.text === text && kept.agent === agent;
    const entry = again ? kept : { conversation: this.id, id: mintId(), agent, text };
    this.#outbox.keepSending(entry);
    const cancelled = new AbortController();
    this.#sending = cancelled;
    this.#put(pendingView(entry));
    try {
      const turn = await deliver({
        begin: (sent) => this.#api.begin(this.id, sent),
        entry,
        onLost: () => {
          this.#put({ ...pendingView(entry), lost: true });
          this.#told.connection("lost");
        },
        wait: this.#world.wait,
        signal: AbortSignal.any([cancelled.signal, this.#closed.signal]),
        random: this.#world.random,
      });
      if (turn === null) {
        // Whether it arrived is not known. The id stays with the text, so sending it again cannot begin a second turn.
        if (cancelled.signal.aborted) this.#giveBack(entry);
        return;
      }
      this.#outbox.dropSending(entry);
      this.missing = false;
      this.loaded = true;
      this.#told.connection("open");
      if (cancelled.signal.aborted && turn.state === "running") {
        this.#put({ ...this.#viewOf(turn), cancelling: true });
        if (await this.act(turn.id, "cancel")) return;
      }
      this.#take(turn);
    } catch (error) {
      this.#outbox.dropSending(entry);
      this.#giveBack(entry);
      if (this.#closed.signal.aborted) return;
      this.#told.error(error, "send");
      if (error.status === 409) await this.#reread();
    } finally {
      if (this.#sending === cancelled) this.#sending = null;
    }
  }

  #giveBack(entry) {
    this.turns.delete(entry.id);
    if (this.#closed.signal.aborted) {
      this.#outbox.giveBack(this.id, entry.text);
      this.#told.kept();
      return;
    }
    this.#told.list();
    this.#told.refused(entry.text);
  }

  /** Cancels the turn that runs. One whose text is under way is not sent again, and is cancelled once it has arrived. */
  async cancel() {
    const view = this.newest;
    if (this.#sending) {
      this.#sending.abort();
      if (view?.state === "sending") this.#put({ ...view, cancelling: true });
      return;
    }
    if (view?.state !== "running") return;
    this.#put({ ...view, cancelling: true });
    if (!(await this.act(view.id, "cancel"))) {
      const now = this.turns.get(view.id);
      if (now) this.#put({ ...now, cancelling: false });
    }
  }

  /** Does something about a turn by the API's word for it. True when the server took it; an error is told. */
  async act(id, name, body) {
    try {
      const turn = await this.#api[name](this.id, id, ...(body === undefined ? [] : [body]));
      if (!this.#following.has(id) || turn.state !== "running") this.#take(turn); // else its stream tells more
      return true;
    } catch (error) {
      this.#told.error(error, name);
      if (error instanceof Unreachable || error.status === 409 || error.status === 404) await this.#reread();
      return false;
    }
  }

  async #reread() {
    try {
      await this.#read();
    } catch {
      this.#told.connection("lost"); // what went wrong first has been told
    }
  }

  get blocked() {
    return this.newest !== null && goesOn(this.newest);
  }
}

function pendingView(entry) {
  return {
    id: entry.id,
    conversation: entry.conversation,
    agent: entry.agent,
    state: "sending",
    outcome: null,
    reason: null,
    opened_at_ms: Date.now(),
    said: [{ text: entry.text, images: [], after: 0 }],
    attempts: [],
    waiting: [],
    unsettled: [],
    usage: null,
    budget: null,
    seen: null,
    lost: false,
  };
}
