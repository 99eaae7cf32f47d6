// A chat of the `ai` package against a real backend: one scenario each run, told by its name.
//
//   node client.mjs <url> <scenario>
//
// Lines of JSON go to the standard output: {"at": ...} where the test has something to do, and at last
// {"result": ...}. A line on the standard input says that it was done.

import { createInterface } from 'node:readline';
import {
  AbstractChat,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  readUIMessageStream,
  uiMessageChunkSchema,
  validateUIMessages,
} from 'ai';

const [url, scenario] = process.argv.slice(2);
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = value => process.stdout.write(JSON.stringify(value) + '\n');
const done = async at => {
  say({ at });
  await input.next();
};

let posts = 0;

function transport(options = {}) {
  return new DefaultChatTransport({
    api: `${url}/ui/chat`,
    fetch: (address, init) => {
      posts += init.method === 'POST' ? 1 : 0;
      return fetch(address, init);
    },
    ...options,
  });
}

class Chat extends AbstractChat {
  constructor({ messages = [], ...init }) {
    const wake = () => this.wake?.();
    const state = {
      messages,
      error: undefined,
      current: 'ready',
      get status() {
        return this.current;
      },
      set status(value) {
        this.current = value;
        wake();
      },
      pushMessage(message) {
        this.messages = [...this.messages, structuredClone(message)];
        wake();
      },
      popMessage() {
        this.messages = this.messages.slice(0, -1);
      },
      replaceMessage(index, message) {
        this.messages = this.messages.with(index, structuredClone(message));
        wake();
      },
      snapshot: value => structuredClone(value),
    };
    super({ transport: transport(), id: 'chat', ...init, state });
  }

  get parts() {
    return this.lastMessage?.role === 'assistant' ? this.lastMessage.parts : [];
  }

  get text() {
    return this.parts.filter(part => part.type === 'text').map(part => part.text).join('');
  }

  async until(test) {
    while (!test(this)) {
      await new Promise(resolve => {
        this.wake = resolve;
      });
    }
  }
}

async function told(chat, more = {}) {
  await validateUIMessages({ messages: chat.messages });
  const { messages, status, error } = chat;
  return { messages, status, error: error?.message ?? null, posts, ...more };
}

const waits = chat => chat.parts.filter(part => part.state === 'approval-requested');

async function answer(approved) {
  const chat = new Chat({ sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses });
  await chat.sendMessage({ text: 'Go' });
  const asked = structuredClone(chat.parts);
  for (const part of waits(chat)) {
    await chat.addToolApprovalResponse({ id: part.approval.id, approved, reason: 'As I say.' });
  }
  await chat.until(() => posts === 2 && chat.status === 'ready');
  return told(chat, { asked });
}

const scenarios = {
  async send() {
    const finished = [];
    const data = [];
    const chat = new Chat({ onFinish: event => finished.push(event), onData: part => data.push(part) });
    await chat.sendMessage({ text: 'Go' });
    const { finishReason, isError, isAbort, isDisconnect } = finished[0];
    return told(chat, { finished: { finishReason, isError, isAbort, isDisconnect }, data });
  },

  async chunks() {
    const message = { id: 'turn-1', role: 'user', parts: [{ type: 'text', text: 'Go' }] };
    const sent = { trigger: 'submit-message', chatId: 'chat', messages: [message] };
    const [one, two] = (await transport().sendMessages(sent)).tee();
    const schema = uiMessageChunkSchema();
    const kinds = [];
    const check = async () => {
      for await (const chunk of one) {
        const { success, error } = await schema.validate(chunk);
        if (!success) {
          throw error;
        }
        kinds.push(chunk.type);
      }
    };
    const read = async () => {
      let last;
      for await (const seen of readUIMessageStream({ stream: two })) {
        last = seen;
      }
      return last;
    };
    const [, last] = await Promise.all([check(), read()]);
    return { kinds, message: last };
  },

  approve: () => answer(true),
  deny: () => answer(false),

  async external() {
    const chat = new Chat({
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall: ({ toolCall }) => {
        chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: { room: 5 } });
      },
    });
    await chat.sendMessage({ text: 'Go' });
    await chat.until(() => posts === 2 && chat.status === 'ready');
    return told(chat);
  },

  async reconnect() {
    const chat = new Chat({});
    const sending = chat.sendMessage({ text: 'Go' });
    const half = 'Let me look.One two ';
    await chat.until(() => chat.text === half);
    await chat.stop();
    await sending;
    const [said] = chat.messages;
    const reloaded = new Chat({ messages: [said] });
    const resuming = [chat.resumeStream(), reloaded.resumeStream()];
    await chat.until(() => chat.status === 'streaming');
    await chat.until(() => chat.text === half);
    await reloaded.until(() => reloaded.text === half);
    await done('resumed');
    await Promise.all(resuming);
    const again = await transport().reconnectToStream({ chatId: 'chat' });
    return told(chat, { reloaded: reloaded.messages, again });
  },

  async reload() {
    const chat = new Chat({
      messages: [{ id: 'turn-1', role: 'user', parts: [{ type: 'text', text: 'Go' }] }],
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    });
    await chat.resumeStream();
    const asked = structuredClone(chat.parts);
    await chat.addToolApprovalResponse({ id: waits(chat)[0].approval.id, approved: true });
    await chat.until(() => posts === 1 && chat.status === 'ready');
    return told(chat, { asked });
  },

  async cut() {
    const finished = [];
    const chat = new Chat({ onFinish: event => finished.push(event) });
    const sending = chat.sendMessage({ text: 'Go' });
    await chat.until(() => chat.text !== '');
    await done('streaming');
    await sending;
    return told(chat, { isError: finished[0].isError });
  },

  async refused() {
    const chat = new Chat({ generateId: () => 'not an id' });
    await chat.sendMessage({ text: 'Go' });
    return { status: chat.status, error: chat.error.message };
  },
};

say({ result: await scenarios[scenario]() });
process.exit(0);
