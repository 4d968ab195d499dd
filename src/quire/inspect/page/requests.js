// Requests: counts, then a list with a bar each, then one request with its explanation, its events and its sheets.
import { json } from "./ask.js";
import { bytes, count, isGone, lookup, notFound, plural, result, seconds, share } from "./document.js";
import { Table, bar, counts, element, link, strips, write } from "./dom.js";
import { schedule } from "./frame.js";
import { isName, label, linked, placeOf } from "./names.js";

const AT_ONCE = 100;
const AGAIN_MILLISECONDS = 1000;
const ORDERS = { line: "admission", memory: "most memory", wait: "latest start", length: "highest token limit" };
const COLUMNS = ["name", "tenant", "state", "known", "limit", "preemptions", "bytes", "at_most_steps", "reason"];
const PARTS = [["found", "found in the pool"], ["loaded", "loaded from a tier"], ["computed", "computed"], ["generated", "generated"], ["likely", "likely to follow"]];

export class Requests {
  constructor() {
    this.counts = element("div", { class: "counts" });
    this.one = new One();
    this.filter = element("input", { id: "filter", type: "search", oninput: () => this.turn(0) });
    this.order = element("select", { id: "order", onchange: () => this.turn(0) }, ...Object.entries(ORDERS).map(([value, text]) => element("option", { value }, text)));
    this.range = element("span", { class: "quiet" });
    this.back = element("button", { type: "button", onclick: () => this.turn(this.first - AT_ONCE) }, "‹ Back");
    this.on = element("button", { type: "button", onclick: () => this.turn(this.first + AT_ONCE) }, "More ›");
    this.table = new Table("List of requests", ["Request", "State", "=Tokens up to its limit", "#Tokens, of its limit", "#KV memory, shared pages included", "#Preempted", "=Why it waits", "=Starts at the latest (a guarantee, usually much sooner)"]);
    this.together = element("p", { class: "quiet small" });
    const legend = element("p", { class: "legend" }, ...PARTS.map(([name, text]) => {
      const square = element("i");
      square.style.background = `var(--${name})`;
      return element("span", {}, square, text);
    }));
    this.node = element("section", { "aria-labelledby": "requests-title" }, element("h2", { id: "requests-title" }, "Requests"), this.counts, this.one.node,
      element("div", { class: "tools" }, element("label", {}, "Name or id contains", this.filter), element("label", {}, "Order by", this.order), this.back, this.on, this.range), legend, this.table.node, this.together);
    this.first = 0;
  }

  turn(first) {
    this.first = Math.max(0, first);
    schedule();
  }

  enter(name, map) {
    this.one.enter(name, map);
  }

  update(now, name) {
    const found = now.requests;
    if (!found) return;
    const { others } = found, rest = others.running + others.waiting;
    counts(this.counts, [[`${count(found.running)} of ${count(found.rows)}`, "rows (batch slots) in use"], [count(found.waiting), "waiting"], ...this.greatest(now), ...(rest ? [[count(rest), `of other keys, holding ${bytes(others.size_bytes)}`]] : [])]);
    this.hasTenants = new Set(found.table.tenant).size > 1;
    const all = this.sorted(found.table);
    if (this.first >= all.length) this.first = Math.max(0, AT_ONCE * (Math.ceil(all.length / AT_ONCE) - 1));
    const shown = all.slice(this.first, this.first + AT_ONCE);
    write(this.range, all.length ? `${count(this.first + 1)}–${count(this.first + shown.length)} of ${count(all.length)}` : "none");
    this.back.disabled = !this.first;
    this.on.disabled = this.first + shown.length >= all.length;
    this.table.update(shown.map((place) => this.row(now, found, place)), shown.findIndex((place) => found.table.name[place] === name));
    write(this.together, together(now));
    this.one.update(now, name);
  }

  // The request with most memory. Pages that requests share count for each of them.
  greatest(now) {
    const { table } = now.requests, size = Math.max(0, ...table.bytes);
    if (!size) return [];
    const name = table.name[table.bytes.indexOf(size)], pool = now.pool.stages.reduce((sum, stage) => sum + stage.sheets * stage.sheet_bytes, 0);
    return [[`${bytes(size)}, ${share(size, pool)}`, "of the pool: most memory, held by ", link(placeOf(name), short(name))]];
  }

  sorted(table) {
    const sought = this.filter.value.trim().toLowerCase().replace(/^(chatcmpl|cmpl|msg|resp)[-_]/, "");
    const places = [...table.name.keys()].filter((place) => !sought || `${table.name[place]} ${table.client_id[place]} ${table.tenant[place]}`.toLowerCase().includes(sought));
    const key = { memory: table.bytes, wait: table.at_most_steps, length: table.limit }[this.order.value];
    return key ? places.sort((one, other) => key[other] - key[one]) : places;
  }

  row(now, found, place) {
    const [name, tenant, state, known, limit, preemptions, size, steps, reason] = COLUMNS.map((column) => found.table[column][place]);
    const why = found.reasons.text[reason];
    const wait = why === undefined ? ["", ""] : [why, lasting(steps, now) || `after ${plural(steps, "step")}`];
    const who = short(name) + (this.hasTenants ? ` · ${tenant}` : "");
    return [link(placeOf(name), who), found.states[state], progress(found.table, place), `${count(known)} of ${count(limit)}`, bytes(size), preemptions ? `${count(preemptions)} ×` : "", ...wait];
  }
}

// What all requests hold, each page once and for each that shares it.
function together({ requests, pool }) {
  const each = requests.table.bytes.reduce((sum, size) => sum + size, requests.others.size_bytes);
  const kinds = pool.stages.flatMap((stage) => stage.kinds), all = pool.stages.reduce((sum, stage) => sum + stage.sheets * stage.sheet_bytes, 0);
  const once = kinds.reduce((sum, kind) => sum + kind.used_pages * kind.page_bytes, 0);
  return each ? `Together they hold ${bytes(once)}, ${share(once, all)} of the pool; with shared pages counted for each, ${bytes(each)}.` : "";
}

// What the client called it, if it did; a server's own names are long.
function short(name) {
  const given = label(name);
  return given === name && name.length > 16 ? `${name.slice(0, 8)}…${name.slice(name.lastIndexOf("-"))}` : given;
}

// At the present time of a step.
const lasting = (steps, now) => (now.status.step_milliseconds == null ? "" : `within about ${seconds((steps * now.status.step_milliseconds) / 1000)}`);

export function progress(table, place) {
  const [prompt, known, computed, found, loaded, likely, limit] = ["prompt", "known", "computed", "found", "loaded", "likely", "limit"].map((name) => table[name][place]);
  const reused = Math.min(found + loaded, known), generated = known - prompt;
  const sizes = { found: Math.min(found, reused), loaded: reused - Math.min(found, reused), computed: Math.max(0, Math.min(computed, prompt) - reused), generated };
  const queued = Math.max(0, prompt - Math.max(computed, reused));
  const strip = [["found", sizes.found], ["loaded", sizes.loaded], ["computed", sizes.computed]].map(([name, size]) => [size / limit, `var(--${name})`]);
  strip.push([queued / limit, "transparent"], [generated / limit, "var(--generated)"], [Math.max(0, likely - known) / limit, "var(--likely)"]);
  const text = `${count(sizes.found)} found, ${count(sizes.loaded)} loaded, ${count(sizes.computed)} computed, ${count(generated)} generated, likely ${count(likely)}, limit ${count(limit)}`;
  return bar(strips(strip), text);
}

// ── one request ─────────────────────────────────────────────────────────────

class One {
  constructor() {
    this.title = element("h2");
    this.text = element("pre");
    this.needs = new Table("Pages that it needs, and what there is of them", ["Kind", "#Stage", "#Expected need", "#Free", "#Cached prefixes (evictable)", "#Kept for the growth of running requests", "#Missing"]);
    this.held = new Table("Pages that it holds, shared ones included", ["Kind", "#Stage", "#Sheets", "#Pages"]);
    this.more = element("p", { class: "lines" });
    this.events = new Table("Its latest events, the oldest first", ["Event", "#Step", "Numbers", "Reason", "Because of"]);
    this.node = element("article", { class: "one", hidden: true }, element("div", { class: "head" }, this.title, element("a", { href: "#requests" }, "Close")), this.text, this.needs.node, this.more, this.held.node, this.events.node);
  }

  enter(name, map) {
    this.map = map;
    this.name = name;
    this.asked = 0;
    this.step = null;
    this.shown = "";
    this.node.hidden = !name;
    write(this.title, label(name));
    replace(this.text, "", []);
    this.clear();
    this.events.fill([]);
  }

  clear() {
    write(this.more, "");
    this.needs.fill([]);
    this.held.fill([]);
    this.map.hold([]);
  }

  update(now, name) {
    if (isGone(now)) this.lost = new Set(now.requests.table.name);
    if (!name || name !== this.name || this.isAsking) return;
    if (isGone(now) || now.status.state === "frozen") return this.silence();
    const isOver = this.status === "ended" && this.shown === name;
    if (now.recording ? this.step === now.step : isOver || performance.now() - this.asked < AGAIN_MILLISECONDS) return;
    this.asked = performance.now();
    this.step = now.step;
    this.isAsking = true;
    const at = now.recording ? `?step=${now.step}` : "";
    json(`/v1/inspect/requests/${encodeURIComponent(name)}${at}`)
      .then((found) => this.name === name && this.show(found, now))
      .catch((error) => this.name === name && this.fail(error))
      .finally(() => { this.isAsking = false; schedule(); }); // the name or the step may be another by now
  }

  // What was shown before stays.
  silence() {
    if (this.shown !== this.name) replace(this.text, "The engine does not answer; details come when it does.", []);
  }

  fail(error) {
    if (error.status === 503) return this.silence();
    const isLost = error.status === 404 && this.lost?.has(this.name);
    replace(this.text, isLost ? "It ended when the engine died." : error.message, []);
    if (!isLost) return;
    [this.status, this.shown] = ["ended", this.name];
    this.clear();
  }

  show(found, now) {
    this.status = found.status;
    this.shown = found.name;
    const names = [found.name, ...found.after, ...found.kinds.flatMap((kind) => kind.holders.map(([name]) => name)), ...found.events.flatMap((event) => event.requests)];
    write(this.title, label(found.name));
    replace(this.text, summary(found), names, found.name);
    this.needs.fill(found.kinds.map((one) => [one.kind, ...["stage", "needs_pages", "free_pages", "evictable_pages", "awaited_pages", "missing_pages"].map((name) => count(one[name]))]));
    write(this.more, [this.until(found, now), this.reuse(found, now), label(found.name) === found.name ? "" : `Name in the engine: ${found.name}; the id of its answer ends with ${found.name.slice(0, found.name.lastIndexOf("-"))}.`].filter(Boolean).join("\n"));
    this.held.fill(found.held.map((one) => [one.kind, count(one.stage), count(one.sheets.length), count(one.pages.reduce((sum, pages) => sum + pages, 0))]));
    this.events.fill(found.events.map((event) => [event.what, count(event.step), Object.entries(event.numbers).map(([name, value]) => `${name.replaceAll("_", " ")} ${count(value)}`).join(", "), event.what === "admitted" ? lookup(event.code || "hit", event.numbers.tokens, event.numbers.hit_tokens, now.reuse.unit_tokens) : renamed(event.reason, event.requests),
      event.requests.length && isName(event.requests[0]) ? link(placeOf(event.requests[0]), label(event.requests[0])) : event.requests.join(", ")]));
    this.map.hold(found.held);
  }

  until(found, now) {
    const time = found.at_most_steps == null ? "" : lasting(found.at_most_steps, now);
    return found.at_most_steps == null ? "" : `Until when: it starts after ${plural(found.at_most_steps, "step")} at the latest${time && `, ${time} at the present time of a step`}. That is a guarantee, not an estimate: usually it starts much sooner.`;
  }

  // What its first lookup found, if that is remembered.
  reuse(found, now) {
    const event = found.events.find((one) => one.what === "admitted" && !one.numbers.preemptions);
    if (!event) return found.status === "waiting" ? "Reuse: its prefix is looked up when it starts." : "";
    const { tokens, hit_tokens: hit, ...others } = event.numbers;
    const missed = Object.fromEntries(Object.entries(others).filter(([name]) => name.startsWith("missed_")).map(([name, value]) => [name.slice(7), value]));
    const why = hit || !event.code ? "" : `, because ${result(event.code)}`;
    return `Reuse: ${count(hit)} of ${count(tokens)} prompt tokens were found in the pool${why}. ${notFound(tokens, hit, missed, now.reuse.unit_tokens, event.code)}.`;
  }
}

const VERBS = { waiting: "Waits", loading: "Waits", running: "Runs" };
function summary(found) {
  return found.status === "ended" ? "It has ended." : [`${VERBS[found.status]}: ${found.reason}`, ...found.kinds.map(holders), found.kinds.length ? "A shared page counts for each holder" : "", found.kept, found.room].filter(Boolean).join("\n");
}

const holders = ({ kind, holders: all }) => all.length ? `Pages of ${kind} are held by ${all.map(([name, pages]) => `${name} (${count(pages)})`).join(", ")}` : "";

function replace(node, text, names, own) {
  const parts = linked(text, names, own), key = parts.map((part) => part.textContent ?? part).join("");
  if (node.key === key) return;
  node.key = key;
  node.replaceChildren(...parts);
}

const renamed = (text, names) => linked(text, names).map((part) => part.textContent ?? part).join("");
