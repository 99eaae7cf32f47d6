import assert from "node:assert/strict";
import { test } from "node:test";

import { answerOf, applyMessage, codePoints, dropCodePoints, fromTurn, sequenceOf } from "../page/turn.js";

const RUN = `${"ab".repeat(16)}.c1.t1`;
const USAGE = { input_tokens: 10, output_tokens: 5, total_tokens: 15 };

function turn(over = {}) {
  return {
    id: "t1",
    conversation: "c1",
    agent: "clerk",
    state: "running",
    outcome: null,
    reason: null,
    said: [{ text: "hello", images: [], after: 0 }],
    attempts: [],
    waiting: [],
    unsettled: [],
    usage: null,
    budget: { model_calls: { used: 0, limit: 4 }, tool_calls: { used: 0, limit: null }, tokens: { used: 0, limit: null } },
    seconds_left: null,
    redacted: false,
    ...over,
  };
}

function attempt(id, state, over = {}) {
  return { attempt_id: id, state, code: null, exchange: null, text: null, refusal: null, usage: null, calls: [], ...over };
}

function events(...told) {
  return told.map(([type, payload], i) => ({ event_id: `${RUN}:${String(i + 1).padStart(10, "0")}`, type, occurred_at_ms: 1000, run_id: RUN, payload }));
}

const play = (view, messages) => messages.reduce(applyMessage, view);
const start = (id, call_sequence = 1) => ["model.start", { attempt_id: id, call_sequence }];
const text = (id, offset, words) => ["model.output", { attempt_id: id, offset, text: words }];
const end = (id, over = {}) => ["model.end", { attempt_id: id, status: "success", retracted: false, code: null, usage: USAGE, ...over }];
const call = { tool: "look", call_id: "k", exchange: 0, position: 0 };

test("text grows while it arrives, and stands when its attempt ends", () => {
  const view = play(fromTurn(turn()), events(start("a"), text("a", 0, "Hel"), text("a", 3, "lo"), end("a")));
  assert.equal(view.attempts[0].state, "replied");
  assert.equal(answerOf(view), "Hello");
  assert.deepEqual(view.usage, USAGE);
  assert.equal(view.budget.model_calls.used, 1);
  assert.equal(view.budget.tokens.used, 15);
});

test("an event that was seen before changes nothing", () => {
  const told = events(start("a"), text("a", 0, "Hel"), text("a", 3, "lo"));
  const once = play(fromTurn(turn()), told);
  assert.equal(play(once, told), once);
});

test("text that comes again in larger pieces is added once", () => {
  const view = play(fromTurn(turn()), events(start("a"), text("a", 0, "Hel"), text("a", 0, "Hello"), text("a", 2, "llo, you")));
  assert.equal(view.attempts[0].text, "Hello, you");
});

test("offsets count code points, not units of UTF-16", () => {
  const view = play(fromTurn(turn()), events(start("a"), text("a", 0, "😀b"), text("a", 1, "bc😀"), text("a", 4, "d")));
  assert.equal(view.attempts[0].text, "😀bc😀d");
  assert.equal(codePoints("😀b👩‍👧"), 5);
  assert.equal(codePoints("\ud800x"), 2);
  assert.equal(dropCodePoints("😀b😀", 2), "😀");
});

test("text whose beginning was never received says so", () => {
  const view = play(fromTurn(turn()), events(start("a"), text("a", 40, "the rest")));
  assert.equal(view.attempts[0].missing, 40);
  assert.equal(view.attempts[0].text, "the rest");
});

test("a retracted preview leaves no text, and names the reason", () => {
  const view = play(
    fromTurn(turn()),
    events(start("a"), text("a", 0, "wrong"), end("a", { status: "error", retracted: true, code: "stream_cut", usage: null })),
  );
  const [only] = view.attempts;
  assert.deepEqual([only.state, only.text, only.withdrawn, only.code], ["failed", "", true, "stream_cut"]);
  assert.equal(answerOf(view), "");
});

test("a preview that comes after its attempt was withdrawn is not shown", () => {
  const view = play(fromTurn(turn()), events(start("a"), end("a", { status: "error", retracted: true, code: "x" }), text("a", 0, "late")));
  assert.equal(view.attempts[0].text, "");
});

test("the second attempt stands beside the first, which was withdrawn", () => {
  const view = play(
    fromTurn(turn()),
    events(
      start("a"),
      text("a", 0, "wrong"),
      end("a", { status: "error", retracted: true, code: "x", usage: null }),
      ["resend.scheduled", { attempt_id: "a", code: "x", delay_ms: 500, model: "m" }],
      start("b", 2),
      text("b", 0, "right"),
      end("b"),
    ),
  );
  assert.deepEqual(view.attempts.map((item) => item.text), ["", "right"]);
  assert.equal(view.notice, null);
});

test("a wait before a request is sent again is told", () => {
  const view = play(fromTurn(turn()), events(["resend.scheduled", { attempt_id: "a", code: "rate_limited", delay_ms: 500, model: "m" }]));
  assert.deepEqual([view.notice.code, view.notice.until_ms], ["rate_limited", 1500]);
});

test("a tool call appears with its exact arguments, runs, and ends with its output", () => {
  const told = events(
    start("a"),
    end("a"),
    ["tool.started", { ...call, arguments: '{"n": 1e2}', attempt: 1, converted: [] }],
    ["tool.progress", { tool: "look", call_id: "k", message: "half", fraction: 0.5 }],
    ["tool.ended", { ...call, status: "success", slot: "done", code: null, output: "ok", duration_ms: 7 }],
  );
  const running = play(fromTurn(turn()), told.slice(0, 4)).attempts[0].calls[0];
  assert.deepEqual([running.state, running.arguments, running.progress.message], ["started", '{"n": 1e2}', "half"]);
  const view = play(fromTurn(turn()), told);
  const done = view.attempts[0].calls[0];
  assert.deepEqual([done.state, done.status, done.output, done.progress], ["done", "ok", "ok", null]);
  assert.equal(view.budget.tool_calls.used, 1);
});

test("calls of one exchange keep the order of their positions", () => {
  const at = (position, tool) => ["tool.started", { tool, call_id: tool, exchange: 0, position, arguments: "{}", attempt: 1 }];
  const view = play(fromTurn(turn()), events(start("a"), end("a"), at(1, "second"), at(0, "first")));
  assert.deepEqual(view.attempts[0].calls.map((item) => item.tool), ["first", "second"]);
});

test("calls belong to the attempt that stands, not to the one withdrawn before it", () => {
  const view = play(
    fromTurn(turn()),
    events(start("a"), end("a", { status: "error", retracted: false, code: "x" }), start("b", 2), end("b"), [
      "tool.started",
      { ...call, arguments: "{}", attempt: 1 },
    ]),
  );
  assert.deepEqual(view.attempts.map((item) => item.calls.length), [0, 1]);
});

test("a call that ran out of time and is run again runs again", () => {
  const view = play(
    fromTurn(turn()),
    events(
      start("a"),
      end("a"),
      ["tool.started", { ...call, arguments: "{}", attempt: 1 }],
      ["tool.ended", { ...call, status: "error", slot: "unknown", code: "timeout", output: "", duration_ms: 1 }],
      ["tool.started", { ...call, arguments: "{}", attempt: 2 }],
    ),
  );
  assert.deepEqual([view.attempts[0].calls[0].state, view.attempts[0].calls[0].executions], ["started", 2]);
  assert.equal(view.budget.tool_calls.used, 1);
});

test("a skipped call shows why", () => {
  const view = play(fromTurn(turn()), events(start("a"), end("a"), ["tool.skipped", { ...call, slot: "failed", code: "denied" }]));
  assert.deepEqual([view.attempts[0].calls[0].state, view.attempts[0].calls[0].code], ["failed", "denied"]);
});

test("a Turn replaces what was known", () => {
  const live = play(fromTurn(turn()), events(start("a"), text("a", 0, "Hel")));
  const view = applyMessage(live, { type: "end", turn: turn({ state: "ended", outcome: "completed", attempts: [attempt("a", "replied", { exchange: 0, text: "Hello" })] }) });
  assert.deepEqual([view.state, view.outcome, answerOf(view)], ["ended", "completed", "Hello"]);
});

test("events that follow a Turn and repeat what it holds change nothing of it", () => {
  const done = { ...call, arguments: "{}", state: "done", executions: 1, status: "ok", output: "ok" };
  const known = fromTurn(turn({ attempts: [attempt("a", "replied", { exchange: 0, text: "Hello", calls: [done] })] }));
  const view = play(
    known,
    events(
      start("a"),
      text("a", 0, "Hello"),
      end("a"),
      ["tool.started", { ...call, arguments: "{}", attempt: 1 }],
      ["tool.ended", { ...call, status: "error", slot: "failed", code: "x", output: "", duration_ms: 1 }],
      ["tool.skipped", { ...call, slot: "skipped", code: "x" }],
    ),
  );
  assert.deepEqual(view.attempts, known.attempts);
});

test("a Turn keeps the preview of an attempt that is still open", () => {
  const live = play(fromTurn(turn()), events(start("a"), text("a", 0, "Hel")));
  const view = play(applyMessage(live, { type: "turn", turn: turn({ attempts: [attempt("a", "open")] }) }), [
    { ...events(text("a", 3, "lo"))[0], event_id: `${RUN}:0000000009` },
  ]);
  assert.equal(view.attempts[0].text, "Hello");
  assert.equal(view.attempts[0].missing, 0);
});

test("a Turn that says an attempt failed takes its preview away", () => {
  const live = play(fromTurn(turn()), events(start("a"), text("a", 0, "wrong")));
  const view = applyMessage(live, { type: "turn", turn: turn({ attempts: [attempt("a", "failed", { code: "x", text: "wrong" })] }) });
  assert.equal(view.attempts[0].text, "");
});

test("a Turn of which nobody knows the outcome takes the preview away, one that can go on keeps it", () => {
  const live = play(fromTurn(turn()), events(start("a"), text("a", 0, "half")));
  const left = (state) => fromTurn(turn({ state, attempts: [attempt("a", "open")] }), live);
  for (const state of ["unsettled", "ended"]) {
    const view = left(state);
    assert.deepEqual([view.attempts[0].text, view.attempts[0].chars, view.attempts[0].withdrawn], ["", 0, true]);
    assert.equal(fromTurn(turn({ state, attempts: [attempt("a", "abandoned")] }), view).attempts[0].withdrawn, true);
  }
  for (const state of ["paused", "elsewhere", "running"]) assert.equal(left(state).attempts[0].text, "half");
  assert.equal(fromTurn(turn({ state: "unsettled", attempts: [attempt("a", "open")] })).attempts[0].withdrawn, false);
});

test("events of another run change nothing", () => {
  const view = fromTurn(turn());
  const other = { ...events(start("a"))[0], run_id: "elsewhere.c2.t9" };
  assert.equal(applyMessage(view, other), view);
});

test("nothing given is changed", () => {
  const freeze = (value) => {
    if (value && typeof value === "object" && !Object.isFrozen(value)) Object.values(Object.freeze(value)).forEach(freeze);
    return value;
  };
  const told = freeze(events(start("a"), text("a", 0, "x"), end("a"), ["tool.started", { ...call, arguments: "{}", attempt: 1 }], ["run.ended", { outcome: "completed" }]));
  const view = told.reduce((before, event) => freeze(applyMessage(before, event)), freeze(fromTurn(turn())));
  assert.equal(view.ending, true);
});

test("an event of a type that is not known is passed over", () => {
  const view = play(fromTurn(turn()), events(["node.started", {}], ["some.day", {}]));
  assert.equal(sequenceOf(view.seen), 2);
  assert.deepEqual(view.attempts, []);
});
