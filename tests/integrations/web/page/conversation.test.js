import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError, Unreachable } from "../page/api.js";
import { Conversation } from "../page/conversation.js";
import { Outbox } from "../page/outbox.js";

const USED = { used: 0, limit: null };

function turn(id, state, over = {}) {
  return {
    id,
    conversation: "c",
    agent: "clerk",
    state,
    outcome: state === "ended" ? "completed" : null,
    reason: null,
    said: [{ text: "hello", images: 0, after: 0 }],
    attempts: [],
    waiting: [],
    unsettled: [],
    usage: null,
    budget: { model_calls: USED, tool_calls: USED, tokens: USED },
    seconds_left: null,
    redacted: false,
    ...over,
  };
}

function stored() {
  const kept = new Map();
  return { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value), removeItem: (key) => kept.delete(key) };
}

function streamOf(...messages) {
  return { body: new Blob(messages.map((message) => `data: ${JSON.stringify(message)}\n\n`)).stream() };
}

/** A conversation on an API whose answers are functions; what it asked and told is noted. */
function open(answers, over = {}) {
  const asked = [];
  const told = { errors: [], refused: [], kept: 0, states: [], connection: [] };
  const settled = [];
  let wake = () => {};
  const api = Object.fromEntries(
    ["conversation", "turn", "begin", "events", "decide", "settle", "resume", "cancel"].map((name) => [
      name,
      async (...given) => {
        asked.push([name, ...given.filter((item) => !(item instanceof AbortSignal))]);
        return answers[name](...given);
      },
    ]),
  );
  const conversation = new Conversation({
    id: "c",
    api,
    outbox: over.outbox ?? new Outbox(stored()),
    world: { wait: async () => {}, watch: () => () => {}, random: () => 0.5 },
    told: {
      turn: (view) => told.states.push(view.state),
      list() {},
      connection: (state) => told.connection.push(state),
      error: (error, what) => told.errors.push([what, error.status]),
      settled: (view) => {
        settled.push(view);
        wake();
      },
      refused: (text) => told.refused.push(text),
      kept: () => told.kept++,
    },
    ...over,
  });
  const left = async () => {
    if (!settled.length) await new Promise((resolve) => (wake = resolve));
    return settled.at(-1);
  };
  return { conversation, asked, told, left };
}

test("a turn that runs is followed to its end", async () => {
  const { conversation, left } = open({
    conversation: () => ({ turns: [turn("t", "running")] }),
    events: () => streamOf({ type: "end", turn: turn("t", "ended") }),
  });
  await conversation.load();
  assert.equal((await left()).state, "ended");
  assert.equal(conversation.busy, false);
});

test("a text is sent under one id until an answer comes, and its turn is followed", async () => {
  let failures = 2;
  const { conversation, asked, left } = open(
    {
      begin: (_, { id }) => {
        if (failures-- > 0) throw new Unreachable(new Error("cut"));
        return turn(id, "running");
      },
      events: (_, id) => streamOf({ type: "end", turn: turn(id, "ended") }),
    },
    { begun: false },
  );
  await conversation.send("hello", "clerk");
  await left();
  const ids = asked.filter(([name]) => name === "begin").map(([, , entry]) => entry.id);
  assert.equal(ids.length, 3);
  assert.equal(new Set(ids).size, 1);
  assert.equal(conversation.turns.size, 1);
});

test("the same text after a sending that was stopped has the same id, and another text has another", async () => {
  const outbox = new Outbox(stored());
  const lost = () => {
    throw new Unreachable(new Error("cut"));
  };
  const first = open({ begin: lost }, { begun: false, outbox });
  const sending = first.conversation.send("hello", "clerk");
  await first.conversation.cancel();
  await sending;
  assert.deepEqual(first.told.refused, ["hello"]);
  const answers = { begin: (_, { id }) => turn(id, "ended") };
  const again = open(answers, { begun: false, outbox });
  await again.conversation.send("hello", "clerk");
  assert.equal(again.asked[0][2].id, first.asked[0][2].id);
  const other = open(answers, { begun: false, outbox });
  await other.conversation.send("good bye", "clerk");
  assert.notEqual(other.asked[0][2].id, first.asked[0][2].id);
});

test("a turn that is cancelled while its text is under way is cancelled once it has arrived", async () => {
  let arrive = () => {};
  const { conversation, asked, told } = open(
    { begin: () => new Promise((resolve) => (arrive = resolve)), cancel: () => turn(asked[0][2].id, "ended", { outcome: "cancelled" }) },
    { begun: false },
  );
  const sending = conversation.send("hello", "clerk");
  await conversation.cancel();
  assert.equal(conversation.newest.cancelling, true);
  arrive(turn(asked[0][2].id, "running"));
  await sending;
  assert.deepEqual(asked.map(([name]) => name), ["begin", "cancel"]);
  assert.deepEqual([conversation.newest.outcome, told.refused], ["cancelled", []]);
});

test("a text that is refused is given back, and the error is told", async () => {
  const { conversation, told } = open(
    {
      begin: () => {
        throw new ApiError(429, "limited", "", {}, 2000);
      },
    },
    { begun: false },
  );
  await conversation.send("hello", "clerk");
  assert.deepEqual([told.refused, told.errors, conversation.turns.size], [["hello"], [["send", 429]], 0]);
});

test("a text that is refused after its conversation was left becomes its draft, before what was written there", async () => {
  const outbox = new Outbox(stored());
  let refuse = () => {};
  const { conversation, told } = open({ begin: () => new Promise((_, reject) => (refuse = reject)) }, { begun: false, outbox });
  const sending = conversation.send("hello", "clerk");
  conversation.close();
  outbox.keepDraft("c", "and");
  outbox.keepSending({ conversation: "d", id: "t", agent: "clerk", text: "of another one" });
  refuse(new ApiError(429, "limited", "", {}, 2000));
  await sending;
  assert.equal(outbox.draft("c"), "hello\n\nand");
  assert.deepEqual([told.refused, told.kept, outbox.sending("c"), outbox.sending("d").id], [[], 1, null, "t"]);
});

test("a stream that is refused for want of a user is not asked for again", async () => {
  let told;
  const once = new Promise((resolve) => (told = resolve));
  const { conversation, asked } = open({
    conversation: () => ({ turns: [turn("t", "running")] }),
    events: () => {
      setImmediate(() => setImmediate(told));
      throw new ApiError(401, "unauthenticated", "");
    },
  });
  await conversation.load();
  await once;
  assert.equal(asked.filter(([name]) => name === "events").length, 1);
});

test("a stream that knows the last event no more is read from its beginning", async () => {
  const answers = [
    () => {
      throw new ApiError(400, "bad_event_id", "");
    },
    () => streamOf({ type: "end", turn: turn("t", "ended") }),
  ];
  const { conversation, asked, left } = open({
    conversation: () => ({ turns: [turn("t", "running")] }),
    events: () => answers.shift()(),
  });
  await conversation.load();
  await left();
  assert.equal(asked.filter(([name]) => name === "events").length, 2);
});

test("a decision goes to the server, and the turn is followed on", async () => {
  const waiting = turn("t", "waiting", { waiting: [{ ref: "r", kind: "approval", tool: "pay", arguments: "{}" }] });
  const { conversation, asked, left } = open({
    conversation: () => ({ turns: [waiting] }),
    decide: () => turn("t", "running"),
    events: () => streamOf({ type: "end", turn: turn("t", "ended") }),
  });
  await conversation.load();
  assert.equal(await conversation.act("t", "decide", { r: { decision: "approve" } }), true);
  assert.equal((await left()).state, "ended");
  assert.deepEqual(asked[1], ["decide", "c", "t", { r: { decision: "approve" } }]);
});

test("what does not fit what the server knows is told, and all is read again", async () => {
  const states = ["waiting", "ended"];
  const { conversation, told } = open({
    conversation: () => ({ turns: [turn("t", states.shift())] }),
    decide: () => {
      throw new ApiError(409, "conflict", "");
    },
  });
  await conversation.load();
  assert.equal(await conversation.act("t", "decide", {}), false);
  assert.deepEqual(told.errors, [["decide", 409]]);
  assert.equal(conversation.newest.state, "ended");
});

test("a turn of another process is followed, and looked at again when its stream says no more", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const elsewhere = turn("t", "elsewhere", { seconds_left: 3 });
  let looked;
  const once = new Promise((resolve) => (looked = resolve));
  const { conversation, asked } = open({
    conversation: () => ({ turns: [elsewhere] }),
    events: () => streamOf({ type: "end", turn: elsewhere }),
    turn: () => (looked(), turn("t", "paused")),
  });
  await conversation.load();
  for (let i = 0; i < 20; i++) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(asked.map(([name]) => name), ["conversation", "events"]);
  t.mock.timers.tick(3300);
  await once;
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(conversation.newest.state, "paused");
});

test("nothing is told of a conversation that was closed", async () => {
  let answer;
  const { conversation, told } = open({ conversation: () => new Promise((resolve) => (answer = resolve)) });
  const loading = conversation.load();
  conversation.close();
  answer({ turns: [turn("t", "ended")] });
  await loading;
  assert.deepEqual(told.states, []);
  assert.equal(conversation.turns.size, 0);
});
