/** The API of the server, and its refusals. Every address is relative to the page, so a prefix before it is kept. */

/** The server answered, and refused. */
export class ApiError extends Error {
  /** @param retryAfterMs - what it asked to be left alone for; null where it did not say. */
  constructor(status, code, message, facts = {}, retryAfterMs = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.facts = facts;
    this.retryAfterMs = retryAfterMs;
  }

  /** Whether the same request would be refused again. */
  get final() {
    return this.status >= 400 && this.status < 500 && this.status !== 408 && this.status !== 429;
  }
}

/** No answer came; whether the server did what was asked is not known. */
export class Unreachable extends Error {
  constructor(cause) {
    super("no answer from the server");
    this.name = "Unreachable";
    this.cause = cause;
  }
}

/** Milliseconds that a Retry-After header asks for: seconds, or an HTTP date; null for anything else. */
export function retryAfter(value, now = Date.now()) {
  if (!value) return null;
  if (/^\s*\d+\s*$/.test(value)) return Number(value) * 1000;
  const at = Date.parse(value);
  return Number.isNaN(at) ? null : Math.max(0, at - now);
}

async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A proxy may have answered; the status says enough.
  }
  const { code = `http_${response.status}`, message = "", ...facts } = error;
  return new ApiError(response.status, code, message, facts, retryAfter(response.headers.get("Retry-After")));
}

/**
 * @param fetch - as the browser's.
 * @param timeoutMs - how long an answer may take before it counts as lost. Streams have no such limit.
 */
export function createApi({ fetch, base = "api/", timeoutMs = 30_000 }) {
  async function ask(method, path, body, { signal, headers, endless = false } = {}) {
    const limit = endless ? signal : AbortSignal.timeout(timeoutMs);
    let response;
    try {
      response = await fetch(base + path, {
        method,
        headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
        body: body === undefined ? undefined : JSON.stringify(body),
        cache: "no-store",
        signal: limit,
      });
    } catch (error) {
      throw new Unreachable(error);
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }

  async function json(method, path, body) {
    const response = await ask(method, path, body);
    try {
      return response.status === 204 ? null : await response.json();
    } catch (error) {
      throw new Unreachable(error); // the answer was cut
    }
  }

  const turn = (c, t) => `conversations/${encodeURIComponent(c)}/turns/${encodeURIComponent(t)}`;
  return {
    session: () => json("GET", "session"),
    conversations: (limit) => json("GET", `conversations?limit=${limit}`),
    conversation: (c) => json("GET", `conversations/${encodeURIComponent(c)}`),
    remove: (c) => json("DELETE", `conversations/${encodeURIComponent(c)}`),
    begin: (c, { id, agent, text }) => json("POST", `conversations/${encodeURIComponent(c)}/turns`, { id, agent, text }),
    turn: (c, t) => json("GET", turn(c, t)),
    decide: (c, t, decisions) => json("POST", `${turn(c, t)}/decide`, { decisions }),
    settle: (c, t, choice) => json("POST", `${turn(c, t)}/settle`, choice),
    resume: (c, t) => json("POST", `${turn(c, t)}/resume`, {}),
    cancel: (c, t) => json("POST", `${turn(c, t)}/cancel`, {}),
    events: (c, t, lastEventId, signal) =>
      ask("GET", `${turn(c, t)}/events`, undefined, {
        signal,
        endless: true,
        headers: { Accept: "text/event-stream", ...(lastEventId ? { "Last-Event-ID": lastEventId } : {}) },
      }),
  };
}

/** An id that nothing else has. `crypto.randomUUID` is kept from pages that came over plain HTTP. */
export function mintId(source = globalThis.crypto) {
  if (source.randomUUID) return source.randomUUID();
  return Array.from(source.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
