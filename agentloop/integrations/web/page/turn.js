/**
 * What is known of one turn, and how each message of its stream changes it.
 *
 * Pure: values in, values out; nothing given is changed. A view has the fields of a Turn as the API gives it, and
 * of the stream besides:
 *
 * - attempts: `chars` (code points of body text received), `missing` (code points that were never received),
 *   `reasoning`, and `withdrawn` (its preview was taken back).
 * - calls: `progress`, the newest note of a tool that runs.
 * - `notice` (a request is sent again after a wait), `rejected` (a limit refused a request), `ending` (the run has
 *   ended, the Turn that says so has not come yet), `seen` (the newest event).
 */

const LEFT = new Set(["unsettled", "ended"]); // in these states no attempt will go on
const NO_PREVIEW = { text: "", chars: 0, missing: 0, reasoning: "" };
const SETTLED_CALLS = new Set(["done", "failed", "skipped"]);

/** Code points in a text: what the server counts offsets in. */
export function codePoints(text) {
  let count = text.length;
  for (let i = 0; i < text.length - 1; i++) {
    const unit = text.charCodeAt(i);
    if (unit >= 0xd800 && unit <= 0xdbff) {
      const next = text.charCodeAt(i + 1);
      if (next >= 0xdc00 && next <= 0xdfff) {
        count--;
        i++;
      }
    }
  }
  return count;
}

/** The text without its first `count` code points. */
export function dropCodePoints(text, count) {
  let at = 0;
  for (; count > 0 && at < text.length; count--) at += text.codePointAt(at) > 0xffff ? 2 : 1;
  return text.slice(at);
}

/** The number in an event id `<run>:<number>`, and 0 where there is none. */
export function sequenceOf(eventId) {
  const tail = /:(\d+)$/.exec(eventId ?? "");
  return tail ? Number(tail[1]) : 0;
}

/**
 * The view of a Turn. It replaces what was known (`before`), but for previews of attempts that are open still:
 * a Turn does not hold those. Where nobody goes on with an attempt, its preview is taken back.
 */
export function fromTurn(turn, before = null) {
  const known = new Map((before?.attempts ?? []).map((attempt) => [attempt.attempt_id, attempt]));
  return {
    ...turn,
    said: turn.said ?? [],
    attempts: (turn.attempts ?? []).map((attempt) => fromAttempt(attempt, known.get(attempt.attempt_id), LEFT.has(turn.state))),
    waiting: turn.waiting ?? [],
    unsettled: turn.unsettled ?? [],
    notice: turn.state === "running" ? (before?.notice ?? null) : null,
    rejected: before?.rejected ?? null,
    ending: false,
    seen: before?.seen ?? null,
  };
}

function fromAttempt(given, known, left) {
  const attempt = { ...given, calls: given.calls ?? [], text: given.text ?? "", missing: 0, reasoning: "", withdrawn: false };
  attempt.chars = codePoints(attempt.text);
  if (known) {
    attempt.reasoning = known.reasoning;
    attempt.withdrawn = known.withdrawn;
    if (attempt.state === "open" && known.state === "open" && known.chars > attempt.chars) {
      attempt.text = known.text;
      attempt.chars = known.chars;
      attempt.missing = known.missing;
    }
  }
  if (attempt.state === "open" && left) return { ...attempt, ...NO_PREVIEW, withdrawn: attempt.withdrawn || attempt.text !== "" };
  if (attempt.state === "failed" || attempt.state === "abandoned") attempt.text = "";
  return attempt;
}

/** The view after one message of the stream: an event, `turn`, or `end`. An event that was seen before changes nothing. */
export function applyMessage(view, message) {
  if (message.type === "turn" || message.type === "end") return fromTurn(message.turn, view);
  if (!isOf(view, message.run_id)) return view; // a run that an agent does for this one is told in its own stream
  const number = sequenceOf(message.event_id);
  if (number && view.seen && number <= sequenceOf(view.seen)) return view;
  const apply = EVENTS[message.type];
  const changed = apply ? apply(view, message.payload ?? {}, message) : view;
  return number ? { ...changed, seen: message.event_id } : changed;
}

function isOf(view, run) {
  return !run || run.endsWith(`.${view.conversation}.${view.id}`) || run === view.id;
}

const EVENTS = {
  "run.started": (view) => ({ ...view, state: "running", outcome: null, reason: null, notice: null, rejected: null, ending: false }),
  "model.start": modelStarted,
  "model.output": (view, payload) => onAttempt(view, payload.attempt_id, (attempt) => withText(attempt, payload)),
  "model.reasoning": (view, payload) =>
    onAttempt(view, payload.attempt_id, (attempt) =>
      codePoints(attempt.reasoning) > payload.offset ? attempt : { ...attempt, reasoning: attempt.reasoning + payload.text },
    ),
  "model.end": modelEnded,
  "resend.scheduled": (view, payload, message) => ({
    ...view,
    notice: { code: payload.code, model: payload.model, until_ms: message.occurred_at_ms + payload.delay_ms, delay_ms: payload.delay_ms },
  }),
  "runtime.rejected": (view, payload) => ({ ...view, rejected: payload }),
  "tool.started": toolStarted,
  "tool.progress": (view, payload) =>
    onCall(view, (call) => call.call_id === payload.call_id && call.state === "started", (call) => ({
      ...call,
      progress: { message: payload.message, fraction: payload.fraction ?? null },
    })),
  "tool.ended": toolEnded,
  "tool.skipped": (view, payload) =>
    SETTLED_CALLS.has(findCall(view, payload)?.state) ? view : withCall(view, payload, { state: payload.slot, code: payload.code }),
  "run.ended": (view) => ({ ...view, notice: null, ending: true }),
};

function newAttempt(id) {
  return {
    attempt_id: id,
    state: "open",
    code: null,
    exchange: null,
    text: "",
    chars: 0,
    missing: 0,
    reasoning: "",
    refusal: null,
    finish: null,
    usage: null,
    withdrawn: false,
    calls: [],
  };
}

function modelStarted(view, payload) {
  const budget = view.budget && withUsed(view.budget, "model_calls", payload.call_sequence);
  const next = { ...view, budget, notice: null };
  if (view.attempts.some((attempt) => attempt.attempt_id === payload.attempt_id)) return next;
  return { ...next, attempts: [...view.attempts, newAttempt(payload.attempt_id)] };
}

function withUsed(budget, name, used) {
  const line = budget[name];
  return !line || typeof used !== "number" || line.used >= used ? budget : { ...budget, [name]: { ...line, used } };
}

/** Changes one attempt; one whose start was not received is begun here. */
function onAttempt(view, id, change) {
  const at = view.attempts.findIndex((attempt) => attempt.attempt_id === id);
  if (at < 0) return { ...view, attempts: [...view.attempts, change(newAttempt(id))] };
  const attempt = change(view.attempts[at]);
  return attempt === view.attempts[at] ? view : { ...view, attempts: view.attempts.with(at, attempt) };
}

function withText(attempt, { offset, text }) {
  if (attempt.state !== "open") return attempt; // its reply is stored, or it was taken back
  const size = codePoints(text);
  const end = offset + size;
  if (end <= attempt.chars) return attempt;
  if (offset > attempt.chars) {
    return { ...attempt, text, chars: end, missing: offset };
  }
  if (offset === 0 && attempt.missing) return { ...attempt, text, chars: end, missing: 0 };
  return { ...attempt, text: attempt.text + dropCodePoints(text, attempt.chars - offset), chars: end };
}

function modelEnded(view, payload) {
  const next = onAttempt(view, payload.attempt_id, (attempt) => {
    if (attempt.state !== "open") return attempt;
    if (payload.status === "success") return { ...attempt, state: "replied", usage: payload.usage };
    const withdrawn = payload.retracted || attempt.text !== "";
    const taken = { ...attempt, ...NO_PREVIEW, withdrawn, usage: payload.usage };
    return payload.status === "pending" ? { ...taken, withdrawn: false } : { ...taken, state: "failed", code: payload.code };
  });
  const usage = usageOf(next);
  return { ...next, usage, budget: next.budget && withUsed(next.budget, "tokens", usage?.total_tokens) };
}

/** Tokens over all attempts; what the Turn said where no attempt tells. */
function usageOf(view) {
  let sum = null;
  for (const { usage } of view.attempts) {
    if (!usage) continue;
    sum ??= { input_tokens: 0, output_tokens: 0, total_tokens: 0 };
    for (const name of Object.keys(sum)) sum[name] += usage[name] ?? 0;
  }
  return sum && (!view.usage || sum.total_tokens >= view.usage.total_tokens) ? sum : view.usage;
}

function findCall(view, { exchange, position }) {
  for (const attempt of view.attempts) {
    for (const call of attempt.calls) if (call.exchange === exchange && call.position === position) return call;
  }
  return null;
}

function toolStarted(view, payload) {
  const known = findCall(view, payload);
  if (known && SETTLED_CALLS.has(known.state) && (known.executions ?? 0) >= payload.attempt) return view;
  const next = withCall(view, payload, {
    arguments: payload.arguments,
    state: "started",
    executions: payload.attempt,
    converted: payload.converted ?? [],
    code: null,
    progress: null,
  });
  return known || !next.budget ? next : { ...next, budget: withUsed(next.budget, "tool_calls", next.budget.tool_calls.used + 1) };
}

function toolEnded(view, payload) {
  const known = findCall(view, payload);
  if (known && SETTLED_CALLS.has(known.state)) return view;
  const over = payload.slot === "done" || payload.slot === "failed";
  return withCall(view, payload, {
    state: payload.slot,
    code: payload.code,
    status: payload.status === "success" ? "ok" : over ? "error" : null,
    output: over ? payload.output : null,
    duration_ms: payload.duration_ms,
    progress: null,
  });
}

/** Changes a call, or adds it to the attempt whose reply it belongs to. */
function withCall(view, payload, change) {
  if (findCall(view, payload)) {
    return onCall(view, (call) => call.exchange === payload.exchange && call.position === payload.position, (call) => ({ ...call, ...change }));
  }
  const at = ownerOf(view, payload.exchange);
  if (at < 0) return view;
  const call = {
    exchange: payload.exchange,
    position: payload.position,
    tool: payload.tool,
    call_id: payload.call_id,
    arguments: null,
    state: "open",
    code: null,
    executions: 0,
    output: null,
    status: null,
    converted: [],
    duration_ms: null,
    ...change,
  };
  const owner = view.attempts[at];
  const calls = [...owner.calls, call].sort((a, b) => a.position - b.position);
  return { ...view, attempts: view.attempts.with(at, { ...owner, exchange: payload.exchange, calls }) };
}

/** The attempt of an exchange; else the newest that stands and has none: a tool may begin before its reply is whole. */
function ownerOf(view, exchange) {
  const at = view.attempts.findIndex((attempt) => attempt.exchange === exchange);
  return at >= 0 ? at : view.attempts.findLastIndex((attempt) => attempt.exchange === null && (attempt.state === "replied" || attempt.state === "open"));
}

function onCall(view, fits, change) {
  let found = false;
  const attempts = view.attempts.map((attempt) => {
    if (!attempt.calls.some(fits)) return attempt;
    found = true;
    return { ...attempt, calls: attempt.calls.map((call) => (fits(call) ? change(call) : call)) };
  });
  return found ? { ...view, attempts } : view;
}

/** Whether a turn takes the conversation's place: no other may begin before it is over. */
export function goesOn(view) {
  return view.state !== "ended";
}

/** Body text of the newest reply that stands. */
export function answerOf(view) {
  return view.attempts.findLast((attempt) => attempt.state === "replied" && attempt.text)?.text ?? "";
}
