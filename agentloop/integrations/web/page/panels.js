/** What a turn asks of a person: decisions about calls, a choice about an outcome that is not known, to go on. */

import { argumentsBlock } from "./arguments.js";
import { h, setText } from "./dom.js";

/**
 * The panel that a view needs, or null. A panel is made once for each `key`, so that what a person has typed stays.
 *
 * @param act - `(name, body) -> Promise`, with the names of the API: decide, settle, resume.
 */
export function panelFor(view, act) {
  switch (view.state) {
    case "waiting":
      return { key: `waiting ${view.waiting.map((call) => call.ref).join(" ")}`, make: () => waitingPanel(view.waiting, act) };
    case "unsettled":
      return { key: `unsettled ${JSON.stringify(view.unsettled)}`, make: () => unsettledPanel(view.unsettled, act) };
    case "paused":
      return { key: "paused", make: () => pausedPanel(act) };
    case "elsewhere":
      return { key: `elsewhere ${view.read_at_ms}`, make: () => elsewherePanel(view) };
    default:
      return null;
  }
}

/**
 * Runs an action of a panel with its controls off. They come back when it fails, and when the same panel is still
 * asked for a moment after it was taken.
 */
async function run(panel, action) {
  const controls = [...panel.querySelectorAll("button, input, textarea, fieldset")].filter((control) => !control.disabled);
  for (const control of controls) control.disabled = true;
  panel.setAttribute("aria-busy", "true");
  const log = panel.closest("[role=log]");
  const focused = panel.contains(document.activeElement);
  const done = await action();
  if (done) await new Promise((resolve) => setTimeout(resolve, 500));
  panel.removeAttribute("aria-busy");
  // Who came here with the keyboard goes on from here, not from the top of the page.
  if (focused && !panel.isConnected && document.activeElement === document.body) log?.focus({ preventScroll: true });
  for (const control of controls) control.disabled = false;
}

// -- calls that wait

function waitingPanel(waiting, act) {
  const many = waiting.length > 1;
  const decided = new Map();
  const panel = h("section", { tabindex: "-1", class: "panel ask", "aria-label": "Waiting for you" });
  const send = () => run(panel, () => act("decide", Object.fromEntries(decided)));
  const count = h("span", { class: "muted" });
  const button = h("button", { type: "button", class: "primary", testid: "send-decisions", onclick: send }, "Send");
  const tell = () => {
    setText(count, `${decided.size} of ${waiting.length} decided`);
    setText(button, decided.size === 1 ? "Send this decision" : `Send ${decided.size || "the"} decisions`);
    button.disabled = decided.size === 0;
  };
  const choose = (ref, decision) => {
    if (decision) decided.set(ref, decision);
    else decided.delete(ref);
    if (many) tell();
    else if (decision) send();
  };
  if (many) panel.append(h("p", { class: "panel-head" }, `${waiting.length} calls wait for you.`));
  for (const call of waiting) panel.append(call.kind === "external" ? externalCard(call, choose, many) : approvalCard(call, choose, many));
  if (many) {
    panel.append(h("div", { class: "panel-foot" }, count, button));
    tell();
  }
  return panel;
}

function cardHead(call, before, after) {
  const whose = call.below ? h("span", { class: "muted" }, ` Asked by ${call.agent}.`) : null;
  return h("h3", {}, before, h("code", { class: "tool" }, call.tool), after, whose);
}

function approvalCard(call, choose, many) {
  const card = h("div", { class: "card", testid: "approval", "data-kind": "approval", "data-decision": "", role: "group" });
  card.setAttribute("aria-label", `Approval of ${call.tool}`);
  const reason = h("input", {
    type: "text",
    placeholder: "Reason, if you deny (optional)",
    "aria-label": "Reason for denying (optional)",
    testid: "deny-reason",
    maxlength: "2000",
  });
  const approve = h("button", { type: "button", class: many ? "plain" : "primary", testid: "approve" }, "Approve");
  const deny = h("button", { type: "button", class: "plain", testid: "deny" }, "Deny");
  const mark = (word) => {
    card.dataset.decision = word;
    if (!many) return;
    approve.setAttribute("aria-pressed", String(word === "approve"));
    deny.setAttribute("aria-pressed", String(word === "deny"));
  };
  const denial = () => ({ decision: "deny", reason: reason.value.trim() });
  // The second click of a double one was meant for what was here before, or would take the first one back.
  approve.addEventListener("click", (event) => {
    if (event.detail > 1) return;
    const word = many && card.dataset.decision === "approve" ? "" : "approve";
    mark(word);
    choose(call.ref, word && { decision: "approve" });
  });
  deny.addEventListener("click", (event) => {
    if (event.detail > 1) return;
    const word = many && card.dataset.decision === "deny" ? "" : "deny";
    mark(word);
    choose(call.ref, word && denial());
  });
  reason.addEventListener("input", () => {
    if (many && card.dataset.decision === "deny") choose(call.ref, denial());
  });
  mark("");
  card.append(cardHead(call, "May ", " run?"), argumentsBlock(call.arguments), h("div", { class: "choices" }, approve, deny, reason));
  return card;
}

function externalCard(call, choose, many) {
  const card = h("div", { class: "card", testid: "approval", "data-kind": "external", "data-decision": "", role: "group" });
  card.setAttribute("aria-label", `Result of ${call.tool}`);
  const result = h("textarea", { rows: "3", placeholder: "Result", "aria-label": `Result of ${call.tool}`, testid: "external-result" });
  const failed = h("input", { type: "checkbox" });
  const answer = h("button", { type: "button", class: many ? "plain" : "primary", testid: "external-answer" }, many ? "Use this result" : "Send result");
  const given = () => ({ decision: "answer", text: result.value, error: failed.checked });
  answer.addEventListener("click", () => {
    const word = many && card.dataset.decision === "answer" ? "" : "answer";
    card.dataset.decision = word;
    if (many) answer.setAttribute("aria-pressed", String(word === "answer"));
    choose(call.ref, word && given());
  });
  for (const field of [result, failed]) {
    field.addEventListener("input", () => {
      if (many && card.dataset.decision) choose(call.ref, given());
    });
  }
  if (many) answer.setAttribute("aria-pressed", "false");
  card.append(
    cardHead(call, "You are asked for the result of ", "."),
    argumentsBlock(call.arguments),
    result,
    h("div", { class: "choices" }, answer, h("label", { class: "check" }, failed, "It failed; the result is an error")),
  );
  return card;
}

// -- an outcome that is not known

function unsettledPanel(unsettled, act) {
  const sends = unsettled.filter((item) => item.kind === "send");
  const calls = unsettled.filter((item) => item.kind === "call");
  const panel = h("section", { tabindex: "-1", class: "panel attention", testid: "unsettled", "aria-label": "Outcome not known" });
  const outcomes = new Map();
  const shown = sends.map((item) => item.id); // and no other: one that came to be later is not what a person chose about
  const said = () => Object.fromEntries([...outcomes].map(([at, read]) => [at, read()]));
  const settle = () => run(panel, () => act("settle", { choice: "ask_again", calls: said(), sends: shown }));
  const again = h("button", { type: "button", class: "primary", testid: "ask-again", onclick: settle }, sends.length ? "Ask again" : "Go on");
  const discard = discardButton(panel, act);
  const tell = () => {
    again.disabled = outcomes.size < calls.length;
  };
  panel.append(h("h3", {}, "What became of this is not known"));
  if (sends.length) {
    panel.append(
      h("p", {}, "The server stopped while the model was being asked. Whether the model answered, and whether that request was charged, is not known. Nothing is sent again until you choose."),
    );
  }
  if (calls.length) {
    const words = calls.length > 1 ? "these tools ran. Each may or may not have done its work." : "this tool ran. It may or may not have done its work.";
    panel.append(h("p", {}, `The server stopped while ${words} Find out, then say what happened: the model is told exactly that.`));
  }
  for (const call of calls) panel.append(unsettledCard(call, (at, read) => (outcomes.set(at, read), tell())));
  panel.append(h("div", { class: "choices" }, again, discard));
  panel.append(
    h("p", { class: "muted small" }, sends.length ? "“Ask again” sends a new request. “Discard” ends this turn as it is." : "“Discard” ends this turn as it is."),
  );
  tell();
  return panel;
}

let groups = 0;

function unsettledCard(call, chosen) {
  const group = `outcome-${++groups}`;
  const text = h("textarea", { rows: "2", placeholder: "Its result, as the model is to read it", "aria-label": `Result of ${call.tool}`, testid: "settle-text", hidden: true });
  const option = (outcome, words) => {
    const radio = h("input", { type: "radio", name: group, value: outcome, testid: `settle-${outcome}` });
    radio.addEventListener("change", () => {
      text.hidden = outcome === "not_done";
      text.placeholder = outcome === "failed" ? "The error, as the model is to read it" : "Its result, as the model is to read it";
      chosen(call.id, () => ({ outcome, text: outcome === "not_done" ? "" : text.value }));
    });
    return h("label", { class: "check" }, radio, words);
  };
  return h(
    "fieldset",
    { class: "card", testid: "unsettled-call" },
    h("legend", { class: "offscreen" }, `What became of ${call.tool}`),
    h("h3", {}, h("code", { class: "tool" }, call.tool)),
    argumentsBlock(call.arguments),
    h("div", { class: "options" }, option("done", "It was done"), option("failed", "It was tried, and failed"), option("not_done", "It was not done")),
    text,
  );
}

function discardButton(panel, act) {
  return h("button", { type: "button", class: "plain", testid: "discard", onclick: () => run(panel, () => act("settle", { choice: "discard" })) }, "Discard");
}

// -- a turn that stands still

function pausedPanel(act) {
  const panel = h("section", { tabindex: "-1", class: "panel ask", "aria-label": "Paused" });
  const go = h("button", { type: "button", class: "primary", testid: "continue", onclick: () => run(panel, () => act("resume")) }, "Continue");
  panel.append(
    h("h3", {}, "This turn is paused"),
    h("p", {}, "The server was closed while it went on. Nothing is in doubt: it can go on where it left off."),
    h("div", { class: "choices" }, go, discardButton(panel, act)),
  );
  return panel;
}

function elsewherePanel(view) {
  const left = h("span", {});
  const panel = h("section", { tabindex: "-1", class: "panel ask", testid: "elsewhere", "aria-label": "In another process" });
  const tell = () => {
    const rest = Math.ceil((view.read_at_ms + (view.seconds_left ?? 0) * 1000 - Date.now()) / 1000);
    setText(left, rest > 0 ? `If that process has stopped, the turn is free in ${rest} s. It is looked at again then.` : "Looking again…");
  };
  const ticking = setInterval(() => (panel.isConnected ? tell() : clearInterval(ticking)), 1000);
  panel.append(h("h3", {}, "Another server process has this turn"), h("p", { class: "muted" }, left));
  tell();
  return panel;
}
