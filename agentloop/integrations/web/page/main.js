/** The page: what is open, and how its parts are told. */

import { createApi, mintId } from "./api.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { h, icon, setText } from "./dom.js";
import { Outbox } from "./outbox.js";
import { BROWSER, backoff } from "./stream.js";
import { Sidebar } from "./sidebar.js";
import { Transcript } from "./transcript.js";
import { answerOf } from "./turn.js";
import { blockedBy, errorWords, outcomeWords } from "./words.js";

const $ = (id) => document.getElementById(id);
const LIST_AGAIN_MS = 4000;
const LISTED = 200; // more than that the server lists in no case
const MAC = /Mac|iPhone|iPad/.test(navigator.platform);

const api = createApi({
  fetch: (...request) => fetch(...request),
  base: new URL("api/", location.origin + location.pathname).href, // without a name and password that the address may have
});
const outbox = new Outbox(sessionStorageOrNone());

let session = { user: "", agents: [] };
let conversations = [];
let open = null; // the Conversation that is shown; null where a new one begins
let agentOfNew = null;

const transcript = new Transcript({
  log: $("log"),
  turns: $("turns"),
  jump: $("jump"),
  act: (turn, name, body) => open.act(turn, name, body),
});

const composer = new Composer({
  form: $("composer"),
  text: $("text"),
  send: $("send"),
  cancel: $("cancel"),
  reason: $("reason"),
  onSend: send,
  onCancel: () => open?.cancel(),
  onLeft: () => requestAnimationFrame(keepFocus), // by then the turn is drawn
  onDraft: (text) => outbox.keepDraft(open?.id, text),
});

const sidebar = new Sidebar({ list: $("list"), empty: $("list-empty"), onDelete: askToDelete });

function sessionStorageOrNone() {
  try {
    return sessionStorage;
  } catch {
    return { getItem: () => null, setItem() {}, removeItem() {} };
  }
}

// -- what is open

function idInAddress() {
  return /^#\/c\/([A-Za-z0-9_-]{1,40})$/.exec(location.hash)?.[1] ?? null;
}

function openConversation(id) {
  open?.close();
  showLost(false);
  hideError();
  open = id === null ? null : new Conversation({ id, api, outbox, told: tellerFor(id), stallMs: stallMs() });
  transcript.list([]);
  composer.text = outbox.draft(id);
  showAll();
  transcript.toEnd();
  return open?.load().then(recover);
}

/** What a conversation tells; nothing is heard of one that was left. */
function tellerFor(id) {
  const here = (then) => (...args) => {
    if (open?.id === id) then(...args);
  };
  return {
    turn: here((view) => {
      transcript.update(view);
      showComposer();
    }),
    list: here(showAll),
    connection: here((state) => showLost(state === "lost")),
    error: here(showError),
    settled: here((view) => {
      announce(view);
      void readList();
    }),
    kept: () => {
      showNote("A message in another conversation was not sent. It is kept there.");
      void readList();
    },
    refused: here((text) => {
      if (open.turns.size === 0) conversations = conversations.filter((item) => !(item.local && item.id === id));
      showAll();
      composer.text = composer.text.trim() ? `${text}\n\n${composer.text}` : text;
      focusComposer();
    }),
  };
}

/** A text that was under way when the page was left: shown with its turn, or given back to be sent again. */
function recover() {
  if (!open?.loaded) return;
  const kept = outbox.sending(open.id);
  if (!kept) return;
  if (open.turns.has(kept.id)) {
    if (open.turns.get(kept.id).state !== "sending") outbox.dropSending(kept);
  } else if (!composer.text) composer.text = kept.text;
}

function send(text) {
  hideError();
  const agent = agentOf();
  if (open === null) {
    const id = mintId();
    outbox.keepDraft(null, "");
    history.pushState(null, "", `#/c/${id}`);
    open = new Conversation({ id, api, outbox, told: tellerFor(id), stallMs: stallMs(), begun: false });
    const now = Date.now();
    conversations = [{ id, title: text.slice(0, 80), updated_at_ms: now, turns: 1, live: null, local: true }, ...conversations];
  }
  transcript.toEnd();
  void open.send(text, agent);
  showAll();
}

/** Silence after which a stream counts as dead: the server says how often it writes at least. */
function stallMs() {
  return session.keep_alive_seconds ? 3_000 * session.keep_alive_seconds : undefined;
}

function agentOf() {
  return open?.newest?.agent ?? agentOfNew ?? session.agents[0]?.name ?? null;
}

// -- what is shown

function showAll() {
  document.body.classList.toggle("blank", open === null || (open.loaded && open.turns.size === 0));
  transcript.list(open ? [...open.turns.values()] : []);
  showHead();
  showComposer();
  showList();
}

function showHead() {
  const first = open?.turns.values().next().value;
  const known = conversations.find((item) => item.id === open?.id);
  const title = open ? known?.title || first?.said[0]?.text?.slice(0, 80) || "Conversation" : "New conversation";
  setText($("title"), title);
  document.title = open ? `${title} · Chat` : "Chat";
  setText($("agent-name"), session.agents.length > 1 && open?.newest ? open.newest.agent : "");
  showWelcome();
}

function showWelcome() {
  const old = $("welcome");
  const wanted = document.body.classList.contains("blank");
  const agent = session.agents.find((item) => item.name === agentOf());
  const key = wanted ? `${open?.missing} ${agent?.name}` : "";
  if (old?.dataset.key === key) return;
  old?.remove();
  if (!wanted) return;
  const tools = agent?.tools ?? [];
  $("log").prepend(
    h(
      "section",
      { class: "welcome", id: "welcome", "data-key": key },
      h("h2", {}, open?.missing ? "There is nothing here yet." : "What would you like to know?"),
      agent && h("p", {}, "You are talking to ", h("strong", {}, agent.name), tools.length ? ", which can use these tools:" : "."),
      tools.length > 0 && h("ul", { class: "tools" }, tools.map((name) => h("li", {}, name))),
    ),
  );
}

function showComposer() {
  const view = open?.newest;
  composer.show({
    busy: Boolean(open?.busy),
    blocked: blockedBy(view),
    unread: open !== null && !open.loaded,
    cancelling: Boolean(view?.cancelling),
  });
  $("agents").hidden = session.agents.length < 2 || Boolean(open?.turns.size);
}

function showList() {
  const live = open?.busy ? open.id : null;
  sidebar.show(
    conversations.map((item) => (item.id === live ? { ...item, live: true } : item)),
    open?.id ?? null,
  );
}

/** Says in one piece, to those who listen, what came of a turn. */
function announce(view) {
  const answer = answerOf(view);
  const words = {
    waiting: "The turn waits for your decision.",
    unsettled: "The outcome of this turn is not known. It waits for your choice.",
    paused: "The turn is paused.",
    elsewhere: "Another server process has this turn.",
    ended: outcomeWords(view) ?? "Answer complete.",
  }[view.state];
  setText($("announce"), ""); // the same words said twice are news twice
  setTimeout(() => setText($("announce"), view.state === "ended" && answer ? `${words} ${answer.slice(0, 1500)}` : (words ?? "")), 50);
}

// -- the connection

let lost = false;
let reached = false; // since the browser said that it is offline: the server may be on this machine
let backTimer = 0;

function showLost(now) {
  lost = now;
  reached = !now;
  showConnection();
}

function showConnection() {
  const line = $("connection");
  const before = line.dataset.state;
  const state = !navigator.onLine && !reached ? "offline" : lost ? "reconnecting" : "online";
  if (state === before) return;
  line.dataset.state = state;
  clearTimeout(backTimer);
  if (state === "offline") setText(line, "Offline, reconnecting…");
  else if (state === "reconnecting") setText(line, "Connection lost, reconnecting…");
  else {
    setText(line, "Connected again.");
    backTimer = setTimeout(() => setText(line, ""), 2500);
  }
}

addEventListener("offline", () => {
  reached = false;
  showConnection();
});
addEventListener("online", showConnection);

// -- errors

function showError(error, what) {
  const box = $("alert");
  const actions = [];
  if (error.status !== undefined) showLost(false); // it answered
  if (error.status === 401) actions.push(h("button", { type: "button", class: "plain", onclick: () => location.reload() }, "Reload"));
  else actions.push(h("button", { type: "button", class: "quiet round", "aria-label": "Dismiss", onclick: hideError }, icon("cross")));
  const wait = error.retryAfterMs && what !== "send" ? ` Wait ${Math.ceil(error.retryAfterMs / 1000)} s.` : "";
  const words = h("p", {}, errorWords(error) + wait);
  if ((error.status === 429 || error.status === 503) && error.message) words.append(h("span", { class: "detail" }, error.message));
  box.replaceChildren(words, ...actions);
  box.dataset.status = error.status ?? "";
  box.hidden = false;
  if (what === "send" && error.retryAfterMs) composer.holdOff(error.retryAfterMs);
}

function showNote(words) {
  const cross = h("button", { type: "button", class: "quiet round", "aria-label": "Dismiss", onclick: hideError }, icon("cross"));
  $("alert").replaceChildren(h("p", {}, words), cross);
  $("alert").hidden = false;
}

function hideError() {
  $("alert").hidden = true;
}

// -- the list

let reading = null;

/** Reads the list; a second call while one is under way waits for that. */
function readList() {
  reading ??= api
    .conversations(LISTED)
    .then((answer) => {
      const known = new Set(answer.conversations.map((item) => item.id));
      const own = conversations.filter((item) => item.local && !known.has(item.id) && (item.id === open?.id || outbox.draft(item.id) || outbox.sending(item.id)));
      conversations = [...own, ...answer.conversations];
      $("list-cut").hidden = answer.conversations.length < LISTED;
      if (lost && !open?.busy) showLost(false);
      showHead();
      showList();
    })
    .catch((error) => {
      if (error.status !== undefined) showError(error, "read the list");
      else {
        showLost(true);
        void BROWSER.wait(LIST_AGAIN_MS).then(readList);
      }
    })
    .finally(() => {
      reading = null;
    });
  return reading;
}

function askToDelete(item) {
  const dialog = $("delete-dialog");
  setText($("delete-name"), item.title || "Untitled");
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue === "delete") void remove(item);
  };
  dialog.showModal();
}

async function remove(item) {
  try {
    await api.remove(item.id);
  } catch (error) {
    if (error.status === 409) return showNote("A turn of this conversation goes on, or waits for you. End it first, then delete the conversation.");
    if (error.status !== 404) return showError(error, "delete");
  }
  outbox.keepDraft(item.id, "");
  const kept = outbox.sending(item.id);
  if (kept) outbox.dropSending(kept);
  conversations = conversations.filter((other) => other.id !== item.id);
  if (open?.id === item.id) go(null);
  else showList();
}

// -- going about

function go(id) {
  const hash = id === null ? "#/" : `#/c/${id}`;
  if (location.hash === hash) return;
  location.hash = hash;
}

addEventListener("hashchange", () => {
  closeList();
  if (idInAddress() !== (open?.id ?? null)) openConversation(idInAddress());
  focusComposer();
});

/** Where a person goes on who had the focus in the message field: there, or at what the turn asks. */
function keepFocus() {
  if (document.activeElement !== document.body && !document.activeElement?.disabled) return;
  const asked = $("turns").lastElementChild?.querySelector(".panel");
  if ($("text").disabled) (asked ?? $("log")).focus({ preventScroll: true });
  else focusComposer();
}

/** To the message field; not where that would bring up a keyboard on the screen. */
function focusComposer() {
  if (matchMedia("(pointer: fine)").matches) composer.focus();
}

$("new").addEventListener("click", startNew);

function startNew() {
  closeList();
  if (open !== null) go(null);
  focusComposer();
}

$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  composer.focus();
});

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState !== "visible") return;
  void readList();
  void open?.refresh();
});

// -- the list as a drawer, on narrow screens

function openList() {
  document.body.classList.add("list-open");
  $("main").inert = true;
  $("open-list").setAttribute("aria-expanded", "true");
  $("close-list").focus();
}

function closeList() {
  if (!document.body.classList.contains("list-open")) return;
  document.body.classList.remove("list-open");
  $("main").inert = false;
  $("open-list").setAttribute("aria-expanded", "false");
  $("open-list").focus();
}

$("open-list").addEventListener("click", openList);
$("close-list").addEventListener("click", closeList);
$("veil").addEventListener("click", closeList);
matchMedia("(max-width: 48rem)").addEventListener("change", closeList);

// -- keys

addEventListener("keydown", (event) => {
  if (event.isComposing || event.defaultPrevented) return;
  const writing = event.target.closest?.("input, textarea, select");
  if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (!document.querySelector("dialog[open]")) startNew();
  } else if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (document.body.classList.contains("list-open")) closeList();
    else if (open?.busy) void open.cancel();
  } else if (!writing && !event.ctrlKey && !event.metaKey && !event.altKey && !document.querySelector("dialog[open]")) {
    if (event.key === "/") {
      event.preventDefault();
      composer.focus();
    } else if (event.key === "?") $("help-dialog").showModal();
  }
});

$("help").addEventListener("click", () => $("help-dialog").showModal());

// -- what must not happen

addEventListener("error", ({ error }) => showFault(error));
addEventListener("unhandledrejection", ({ reason }) => showFault(reason));

/** A fault of the page itself; the browser writes down which. */
function showFault(error) {
  if (!(error instanceof Error)) return; // not of the page's scripts
  const words = h("p", {}, "Something went wrong in this page. Nothing is lost on the server; reload to go on.");
  $("alert").replaceChildren(words, h("button", { type: "button", class: "plain", onclick: () => location.reload() }, "Reload"));
  $("alert").hidden = false;
}

// -- the beginning

function dress() {
  for (const [id, name] of Object.entries({ send: "send", cancel: "stop", "open-list": "menu", "close-list": "cross", theme: "contrast" })) {
    $(id).append(icon(name));
  }
  $("new").prepend(icon("plus"));
  $("jump").prepend(icon("down"));
  setText($("new-key"), MAC ? "⌘K" : "Ctrl K");
  for (const key of document.querySelectorAll("kbd.mod")) setText(key, MAC ? "⌘" : "Ctrl");
}

function showSession() {
  setText($("user"), session.user);
  $("user").title = session.user;
  const select = $("agent");
  select.replaceChildren(...session.agents.map((agent) => h("option", { value: agent.name }, agent.name)));
  select.addEventListener("change", () => {
    agentOfNew = select.value;
    showHead();
  });
}

async function begin() {
  dress();
  if (!navigator.onLine) showConnection();
  for (let failures = 1; ; failures++) {
    try {
      session = await api.session();
      break;
    } catch (error) {
      if (error.final) return showError(error, "begin");
      showLost(true);
      await BROWSER.wait(Math.max(error.retryAfterMs ?? 0, backoff(failures)));
    }
  }
  showLost(false);
  showSession();
  void readList();
  void openConversation(idInAddress());
  focusComposer();
}

void begin();
