import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError, createApi, mintId, retryAfter, Unreachable } from "../page/api.js";
import { deliver, Outbox } from "../page/outbox.js";
import { backoff, EventDecoder, follow } from "../page/stream.js";

const STREAM = 'id: r:1\ndata: {"n":1}\n\n: alive\r\n\r\nid: r:2\r\ndata: {"n":\r\ndata: 2}\r\n\r\ndata: {"type":"end"}\n\n';

function decodeAll(pieces) {
  const decoder = new EventDecoder();
  return pieces.flatMap((piece) => decoder.feed(piece));
}

test("where a stream is cut changes no event", () => {
  const whole = decodeAll([STREAM]);
  assert.deepEqual(whole.map((event) => [event.id, event.data]), [
    ["r:1", '{"n":1}'],
    ["r:2", '{"n":\n2}'],
    ["r:2", '{"type":"end"}'],
  ]);
  for (let at = 0; at <= STREAM.length; at++) assert.deepEqual(decodeAll([STREAM.slice(0, at), STREAM.slice(at)]), whole);
  assert.deepEqual(decodeAll([...STREAM]), whole);
});

test("an event that was not finished is not told", () => {
  assert.deepEqual(decodeAll(["id: r:1\ndata: {}\n"]), []);
});

/** A server whose connections give what `script` says: pieces of text, then a cut, or silence. */
function server(script) {
  const asked = [];
  const open = async (last, signal) => {
    asked.push(last);
    const step = script.shift();
    if (step instanceof Error) throw step;
    const { pieces, silent = false } = step;
    const body = new ReadableStream({
      start(controller) {
        signal.addEventListener("abort", () => controller.error(signal.reason));
        for (const piece of pieces) controller.enqueue(new TextEncoder().encode(piece));
        if (!silent) controller.close();
      },
    });
    return { body };
  };
  return { asked, open };
}

function world() {
  const waits = [];
  let lose = null;
  return {
    waits,
    silence: () => lose?.(),
    wait: async (ms) => void waits.push(ms),
    watch: (_, lost) => {
      lose = lost;
      return () => (lose = null);
    },
    random: () => 0.5,
  };
}

async function read(script, over = {}) {
  const { asked, open } = server(script);
  const clock = world();
  const got = [];
  const states = [];
  const end = new AbortController();
  await follow({
    open,
    onMessage: (message, id) => {
      got.push([message.n ?? message.type, id]);
      return message.type === "end";
    },
    onState: (state) => states.push(state),
    signal: end.signal,
    world: clock,
    ...over,
  });
  return { asked, got, states, waits: clock.waits };
}

test("a stream that was cut goes on after the last event that was whole", async () => {
  const { asked, got, states } = await read([
    { pieces: ['id: r:1\ndata: {"n":1}\n\nid: r:2\ndata: {"n"'] },
    { pieces: ['id: r:2\ndata: {"n":2}\n\ndata: {"type":"end"}\n\n'] },
  ]);
  assert.deepEqual(asked, [null, "r:1"]);
  assert.deepEqual(got.map(([n]) => n), [1, 2, "end"]);
  assert.deepEqual(states, ["open", "lost", "open"]);
});

test("a wait grows with each failure in a row, and begins anew after a message", async () => {
  const cut = () => new Unreachable(new Error("cut"));
  const { waits } = await read([cut(), cut(), cut(), { pieces: ['data: {"n":1}\n\n'] }, { pieces: ['data: {"type":"end"}\n\n'] }]);
  assert.deepEqual(waits, [500, 1000, 2000, 500]);
  assert.equal(backoff(40, () => 0.5), 15_000);
});

test("a server that asks for a longer wait gets it", async () => {
  const { waits } = await read([new ApiError(503, "draining", "", {}, 4000), { pieces: ['data: {"type":"end"}\n\n'] }]);
  assert.deepEqual(waits, [4000]);
});

test("a refusal that another attempt would not change is raised", async () => {
  await assert.rejects(read([new ApiError(404, "not_found", "")]), (error) => error.status === 404);
});

test("a stream that names an error is cut, and is asked for again", async () => {
  const { asked, got } = await read([{ pieces: ['id: r:1\ndata: {"n":1}\n\nevent: problem\ndata: {"error":{}}\n\n'] }, { pieces: ['data: {"type":"end"}\n\n'] }]);
  assert.deepEqual(asked, [null, "r:1"]);
  assert.deepEqual(got.map(([n]) => n), [1, "end"]);
});

test("a connection that is silent for too long is given up", async () => {
  const script = [{ pieces: ['id: r:1\ndata: {"n":1}\n\n'], silent: true }, { pieces: ['data: {"type":"end"}\n\n'] }];
  const { asked, open } = server(script);
  const clock = world();
  await follow({
    open,
    onMessage: (message) => {
      if (message.n === 1) queueMicrotask(() => setImmediate(clock.silence));
      return message.type === "end";
    },
    onState: () => {},
    signal: new AbortController().signal,
    world: clock,
  });
  assert.deepEqual(asked, [null, "r:1"]);
});

test("reading ends without an error when it is not wanted any more", async () => {
  const stop = new AbortController();
  const { open } = server([{ pieces: ['data: {"n":1}\n\n'], silent: true }]);
  await follow({ open, onMessage: () => void stop.abort(), onState: () => {}, signal: stop.signal, world: world() });
});

test("a text whose answer was lost is sent again under the same id", async () => {
  const sent = [];
  const answers = [new Unreachable(new Error()), new ApiError(502, "http_502", ""), { id: "t1" }];
  const turn = await deliver({
    begin: async (entry) => {
      sent.push(entry.id);
      const answer = answers.shift();
      if (answer instanceof Error) throw answer;
      return answer;
    },
    entry: { id: "t1", text: "hello" },
    onLost: () => {},
    wait: async () => {},
    signal: new AbortController().signal,
  });
  assert.deepEqual([turn.id, sent], ["t1", ["t1", "t1", "t1"]]);
});

test("a text that is refused is not sent again", async () => {
  let count = 0;
  const begin = async () => {
    count++;
    throw new ApiError(429, "limited", "", {}, 1000);
  };
  await assert.rejects(
    deliver({ begin, entry: {}, onLost: () => {}, wait: async () => {}, signal: new AbortController().signal }),
    (error) => error.status === 429,
  );
  assert.equal(count, 1);
});

test("drafts and the text under way survive a reload, and a store that refuses", () => {
  const kept = new Map();
  const store = { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value), removeItem: (key) => kept.delete(key) };
  new Outbox(store).keepDraft("c", "half a word");
  const entry = { conversation: "c", id: "t", agent: "a", text: "words" };
  new Outbox(store).keepSending(entry);
  assert.equal(new Outbox(store).draft("c"), "half a word");
  assert.deepEqual(new Outbox(store).sending("c"), entry);
  assert.equal(new Outbox(store).sending("d"), null);
  new Outbox(store).dropSending({ ...entry, id: "another" });
  assert.deepEqual(new Outbox(store).sending("c"), entry);
  new Outbox(store).dropSending(entry);
  assert.equal(new Outbox(store).sending("c"), null);

  const full = new Outbox({
    getItem: () => null,
    setItem() {
      throw new Error("full");
    },
    removeItem() {},
  });
  full.keepDraft("c", "kept");
  assert.equal(full.draft("c"), "kept");
});

test("what is no text under way in the store counts as none", () => {
  for (const kept of ["{bad", "7", "null", "{}", '{"id":"t","text":{}}']) {
    const outbox = new Outbox({ getItem: () => kept, setItem() {}, removeItem() {} });
    assert.equal(outbox.sending("c"), null);
  }
});

test("an error of the server keeps its code, its facts and its wait", async () => {
  const fetch = async () =>
    new Response('{"error":{"code":"limited","message":"expected 4","limit":4}}', { status: 429, headers: { "Retry-After": "7" } });
  await assert.rejects(createApi({ fetch }).session(), (error) => {
    assert.deepEqual([error.status, error.code, error.facts.limit, error.retryAfterMs, error.final], [429, "limited", 4, 7000, false]);
    return true;
  });
});

test("an error that a proxy wrote is told by its status", async () => {
  const fetch = async () => new Response("<html>", { status: 502 });
  await assert.rejects(createApi({ fetch }).session(), (error) => error.code === "http_502");
});

test("Retry-After is read as seconds and as a date", () => {
  assert.equal(retryAfter("12"), 12_000);
  assert.equal(retryAfter("Thu, 01 Jan 1970 00:00:09 GMT", 4000), 5000);
  assert.equal(retryAfter("soon"), null);
  assert.equal(retryAfter(null), null);
});

test("addresses are relative, and ids in them are escaped", async () => {
  const asked = [];
  const fetch = async (url) => (asked.push(url), new Response("{}"));
  await createApi({ fetch }).turn("a/b", "c");
  assert.deepEqual(asked, ["api/conversations/a%2Fb/turns/c"]);
});

test("an id fits the server with and without randomUUID", () => {
  const plain = { getRandomValues: (bytes) => globalThis.crypto.getRandomValues(bytes) };
  for (const id of [mintId(), mintId(plain)]) assert.match(id, /^[A-Za-z0-9_-]{1,40}$/);
  assert.notEqual(mintId(plain), mintId(plain));
});
