/** What the page says, in plain words. */

const OUTCOMES = {
  refused: "The model refused to answer.",
  incomplete: "The answer is incomplete.",
  limit_reached: "A limit ended this turn.",
  failed: "This turn failed.",
  cancelled: "This turn was cancelled.",
};

/** Why a turn ended as it did, or null for an answer that needs no word. */
export function outcomeWords({ outcome }) {
  return outcome === "completed" ? null : (OUTCOMES[outcome] ?? `This turn ended: ${outcome}.`);
}

const CALLS = {
  open: "asked for",
  started: "running",
  waiting: "waiting for you",
  done: "done",
  failed: "failed",
  unknown: "outcome unknown",
  skipped: "not run",
};

export function callWords(call) {
  if (call.state === "done" && call.status === "error") return "done, with an error";
  return CALLS[call.state] ?? call.state;
}

/** Why the composer takes no text, or null. */
export function blockedBy(view) {
  switch (view?.state) {
    case "waiting":
      return "This turn waits for your decision above.";
    case "unsettled":
      return "This turn waits for your choice above: its outcome is not known.";
    case "paused":
      return "This turn is paused. Continue or discard it above.";
    case "elsewhere":
      return "Another server process has this turn. It can be shown here once that is over.";
    default:
      return null;
  }
}

/** What a person is told of an error; the server's own words where it has some. */
export function errorWords(error) {
  switch (error.status) {
    case undefined:
      return "The server could not be reached. Nothing was lost; try again.";
    case 401:
      return "You are not signed in. Sign in, then reload this page.";
    case 403:
      return "You may not do this.";
    case 404:
      if (error.code === "unknown_agent") return `The agent of this conversation is not served any more${detail(error)}.`;
      return "This does not exist any more.";
    case 409:
      return `That did not fit what the server knows${detail(error)}. What you see is up to date now.`;
    case 413:
      return "That text is too long for the server.";
    case 429:
      return "Too much at once. Your text is kept.";
    case 503:
      return "The server takes no new work at the moment. Your text is kept.";
    default:
      return `The server answered with an error (${error.status}, ${error.code})${detail(error)}.`;
  }
}

function detail(error) {
  const text = error.message?.trim().replace(/\.$/, "");
  return text ? `: ${text}` : "";
}

/** A number with thin spaces between thousands. */
export function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** A budget line, "2 of 12", or null where nothing is known of it. */
export function usedOf(line) {
  if (!line) return null;
  return line.limit === null || line.limit === undefined ? grouped(line.used) : `${grouped(line.used)} of ${grouped(line.limit)}`;
}

export function seconds(ms) {
  return ms < 10_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 1000)} s`;
}

/** When something was, as short as it can be said today. */
export function when(ms, now = Date.now()) {
  const date = new Date(ms);
  const today = new Date(now);
  const midnight = new Date(today.getFullYear(), today.getMonth(), today.getDate()).getTime();
  if (ms >= midnight) return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  if (ms >= midnight - 86_400_000) return "Yesterday";
  const year = date.getFullYear() === today.getFullYear() ? {} : { year: "numeric" };
  return date.toLocaleDateString([], { day: "numeric", month: "short", ...year });
}

/** Arguments for reading: JSON set out in lines, or null where they are no JSON or setting them out would change a value. */
export function prettyJson(text) {
  try {
    const value = JSON.parse(text);
    const same = JSON.stringify(value) === withoutSpace(text);
    return same ? JSON.stringify(value, null, 2) : null;
  } catch {
    return null;
  }
}

/** JSON text without the space between its tokens. */
function withoutSpace(text) {
  return text.replace(/("(?:[^"\\]|\\.)*")|\s+/g, (_, string) => string ?? "");
}
