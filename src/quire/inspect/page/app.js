// The page: where documents come from, which view is shown, and one frame after another. The document is all that views
// draw; a new one comes at most twice a second.
import { ask, json } from "./ask.js";
import { Chat } from "./chat.js";
import { applied, count, isGone, milliseconds, plural, seconds, waits } from "./document.js";
import { announce, element, write } from "./dom.js";
import { drawWith, go, schedule } from "./frame.js";
import { PoolMap } from "./map.js";
import { learn } from "./names.js";
import { Memory, Pool, Ranks, Reuse, Sessions, Tiers, WhatIf } from "./panels.js";
import { Requests } from "./requests.js";
import { Time } from "./time.js";

const RETRY_MILLISECONDS = 1000;
const find = (id) => document.getElementById(id);
const page = { document: null, lost: "", view: "requests", name: "", step: null, stream: null };

// ── documents ───────────────────────────────────────────────────────────────

const clock = () => new Date().toLocaleTimeString();

async function watch() {
  for (;;) {
    if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
    if (document.hidden) continue;
    try {
      await follow();
      page.lost = "";
    } catch (error) {
      if (error.name !== "AbortError") page.lost ||= error.refusal ? `There are no updates since ${clock()}: ${error.refusal}` : `The server has not answered since ${clock()}: what is shown is older.`;
      schedule();
    }
    await new Promise((done) => setTimeout(done, RETRY_MILLISECONDS));
  }
}

async function follow() {
  page.stream = new AbortController();
  const answer = await ask("/v1/inspect/stream", { signal: page.stream.signal });
  if (!answer.ok) throw Object.assign(new Error(), { refusal: (await answer.json()).error?.message ?? `the server answers ${answer.status}` });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the stream ended");
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) if (event.startsWith("data: ")) accept(JSON.parse(event.slice(6)));
  }
}

function accept(change) {
  page.lost = "";
  page.document = applied(page.document, change);
  schedule();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) page.stream?.abort();
});

async function showStep(step) {
  page.step = step;
  page.document = await json(step == null ? "/v1/inspect" : `/v1/inspect?step=${step}`);
  schedule();
}

// ── frames ──────────────────────────────────────────────────────────────────

const views = {
  pool: ["Pool", new Pool()],
  requests: ["Requests", new Requests()],
  reuse: ["Reuse", new Reuse()],
  sessions: ["Sessions", new Sessions()],
  tiers: ["Tiers", new Tiers()],
  ranks: ["Ranks", new Ranks()],
  "what-if": ["What if", new WhatIf()],
};
const memory = new Memory(find("memory"));
const map = new PoolMap((stage, sheet) => go(`pool/${stage}/${sheet}`));
const chat = new Chat(find("chat"), find("chat-open"));
let time = null;

drawWith(() => {
  const now = page.document;
  drawBanner(now);
  if (!now) return;
  write(find("model"), now.model);
  drawStatus(now);
  drawAge(now);
  if (now.requests) learn(now.requests.table);
  memory.update(now.memory);
  if (now.recording) {
    time ??= new Time(find("time"), now.recording, (step) => go(`${page.view}${page.name && `/${page.name}`}?step=${step}`));
    time.update(now.step);
  }
  drawCounts(now);
  if (now.pool) map.update(now.pool);
  views[page.view][1].update(now, page.name);
});

function drawBanner(now) {
  const status = now?.status, trouble = ["dead", "starting", "frozen", "silent", "draining"].includes(status?.state);
  const restarts = status?.restarts ? ` Restarts so far: ${status.restarts}.` : "";
  const older = now?.step != null && trouble ? ` The drawings are of step ${count(now.step)}, ${seconds(Date.now() / 1000 - now.at)} ago.` : "";
  const audit = status?.audit === "failed" ? `The audit found an error: ${status.audit_error}` : "";
  const text = page.lost || (trouble ? `${status.state}: ${status.reason}.${older}${restarts}` : audit);
  const banner = find("banner");
  write(banner, text);
  banner.hidden = !text;
  banner.className = !page.lost && STATE_CLASS[status?.state] === "warn" ? "warn" : "bad";
  say(page.lost ? "lost" : `${status?.state} ${Boolean(audit)}`, text || `The engine is ${status?.state}.`);
}

// Drawings of an engine that has ended are marked until the next engine has sent its own.
function drawAge(now) {
  if (isGone(now)) page.old = now.at;
  const isOld = now.at != null && page.old === now.at;
  document.body.toggleAttribute("data-old", isOld);
  find("old").hidden = !isOld;
  if (isOld) write(find("old"), `As of step ${count(now.step)}, before the engine ended.`);
}

// Only when the state changes: seconds and counts in the text change with every frame.
let said = "ready false";
function say(state, text) {
  if (state === said) return;
  said = state;
  announce(text);
}

const STATE_CLASS = { ready: "good", recorded: "good", starting: "warn", draining: "warn", silent: "warn", frozen: "bad", dead: "bad" };

function drawStatus(now) {
  const { status } = now, line = find("status");
  const parts = [
    [status.state, STATE_CLASS[status.state]],
    ...(isGone(now) ? ended(now) : atWork(now)),
    ...(status.restarts ? [[plural(status.restarts, "restart"), "warn"]] : []),
  ];
  const key = parts.join("·");
  if (line.key === key) return;
  line.key = key;
  line.replaceChildren(...parts.flatMap(([text, kind], place) => [place ? " · " : "", element(place ? "span" : "b", { class: kind }, text)]));
}

function ended({ status, ranks }) {
  const lost = status.running + status.waiting, kept = ranks.length > 1 ? " or wait for the next engine" : "";
  return [...(lost ? [[`its ${plural(lost, "request")} ended${kept}`]] : []), ...(status.state === "dead" ? [["starting again"]] : [])];
}

function atWork(now) {
  const { status } = now, isFailed = status.audit === "failed";
  const reasons = Object.entries(status.waiting_by).map(([code, number]) => `${count(number)} ${waits(code)}`).join(", ");
  const whose = reasons && !now.reader.is_admin ? "of this key: " : "";
  return [
    [`${count(status.running)} running`],
    [`${count(status.waiting)} waiting${reasons && ` (${whose}${reasons})`}`],
    [`step ${count(now.source === "server" ? status.steps : now.step)}${status.step_milliseconds == null ? "" : `, ${milliseconds(status.step_milliseconds)} each`}`],
    ...(status.audit_step == null ? [] : [[`last memory audit ${isFailed ? "failed" : "ok"}${status.audit === "due" ? ` at step ${count(status.audit_step)}` : ""}`, isFailed ? "bad" : null]]),
  ];
}

function drawCounts(now) {
  const totals = {
    pool: now.pool && plural(now.pool.stages.reduce((sum, stage) => sum + stage.sheets, 0), "sheet"),
    requests: now.requests && count(now.requests.running + now.requests.waiting),
    sessions: now.sessions && count(now.sessions.leases.name.length),
    tiers: count(now.tiers.name.length),
    ranks: count(now.ranks.length),
  };
  for (const [name, node] of Object.entries(navigation)) if (totals[name] != null) write(node, ` ${totals[name]}`);
}

// ── places: #requests/NAME, #pool/STAGE/SHEET, #reuse?step=120 ──────────────

const navigation = {};
for (const [name, [title]] of Object.entries(views)) {
  navigation[name] = element("span", { class: "count" });
  find("nav").append(element("li", {}, element("a", { href: `#${name}` }, title, navigation[name])));
}

function enter() {
  const [place, query] = location.hash.slice(1).split("?");
  const [view, ...rest] = place.split("/").map(decodeURIComponent);
  const step = new URLSearchParams(query).get("step");
  page.view = view in views ? view : "requests";
  page.name = rest.join("/");
  document.body.dataset.view = page.view;
  if (page.view === "requests" && page.name) document.body.dataset.map = "";
  else delete document.body.dataset.map;
  for (const link of find("nav").querySelectorAll("a")) {
    if (link.hash.slice(1) === page.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const [title, shown] = views[page.view];
  document.title = `${page.name || title} – Quire inspector`;
  find("view").replaceChildren(shown.node);
  if (step != null && Number(step) !== page.step && page.document?.recording) showStep(Number(step));
  map.hold([]);
  shown.enter?.(page.name, map);
  schedule();
}

addEventListener("hashchange", enter);

async function begin() {
  const first = await json("/v1/inspect").catch((error) => ((page.lost = `The server did not answer: ${error.message}`), null));
  page.document = first;
  enter();
  chat.offer(first?.source === "server");
  if (first?.source !== "server" && first) return;
  await watch();
}

begin();
