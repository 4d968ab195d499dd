// The smaller views. Each has a node, and `update` draws a document into it; `enter` is called when it comes into view.
import { json } from "./ask.js";
import { bytes, bytesOf, count, inUnits, lookup, notFound, plural, result, rows, seconds, share } from "./document.js";
import { Table, action, bar, counts, element, link, strips, write } from "./dom.js";
import { schedule } from "./frame.js";
import { COLOURS } from "./map.js";
import { isName, label, placeOf } from "./names.js";

const section = (title, ...inside) => {
  const id = `${title.toLowerCase().replaceAll(" ", "-")}-title`;
  return element("section", { "aria-labelledby": id }, element("h2", { id }, title), ...inside);
};

// ── memory: planned above measured ──────────────────────────────────────────

const MEASURED = [["used", "var(--computed)"], ["cached", "var(--found)"], ["pinned", "var(--warn)"], ["backend", "var(--soft)"], ["free", "var(--free)"]];

const POOL_WORDS = { used: "used by requests", cached: "cached prefixes" };

export class Memory {
  constructor(node) {
    this.planned = element("div", { class: "bar", role: "img", "aria-label": "Planned memory" });
    this.measured = element("div", { class: "bar", role: "img", "aria-label": "The pool now" });
    this.table = new Table("Bytes of the bars above, and what the engine's process takes", ["Memory", "#Bytes", "#Exactly", "Basis"]);
    this.uses = element("p", { class: "legend" });
    this.states = element("p", { class: "legend" });
    node.append(
      element("div", { class: "bars" }, element("span", {}, "planned memory"), this.planned, this.uses, element("span", {}, "pool now"), this.measured, this.states),
      element("details", {}, element("summary", {}, "Memory as a table"), this.table.node));
  }

  update(memory) {
    const { use, bytes: sizes, basis } = memory.planned;
    const total = sizes.reduce((sum, size) => sum + size, 0);
    const words = use.map((name, place) => `${name} ${bytes(sizes[place])}`).join(", ");
    paint(this.planned, strips(use.map((_, place) => [sizes[place] / total, COLOURS[place % COLOURS.length]])), `Planned ${bytes(total)}: ${words}`);
    legend(this.uses, use.map((name, place) => [COLOURS[place % COLOURS.length], name, sizes[place]]));
    const lines = use.map((name, place) => [`planned: ${name}`, bytes(sizes[place]), count(sizes[place]), basis[place]]);
    if (memory.pool) {
      const parts = MEASURED.map(([name, colour]) => [memory.pool[name], colour, name]);
      paint(this.measured, strips(parts.map(([size, colour]) => [size / memory.pool_bytes, colour])),
        `Pool of ${bytes(memory.pool_bytes)}: ${parts.filter(([size]) => size).map(([size, , name]) => `${name} ${bytes(size)}`).join(", ")}`);
      legend(this.states, parts.map(([size, colour, name]) => [colour, POOL_WORDS[name] ?? name, size]));
      for (const [name, size] of Object.entries(memory.pool)) lines.push([`pool: ${name}`, bytes(size), count(size), "measured"]);
    }
    if (memory.resident_bytes) lines.push(["engine's process, resident", bytes(memory.resident_bytes), count(memory.resident_bytes), "measured"]);
    this.table.update(lines);
  }
}

function legend(node, parts) {
  const shown = parts.filter(([, , size]) => size).map(([colour, name, size]) => [colour, `${name} ${bytes(size)}`]), key = shown.join();
  if (node.key === key) return;
  node.key = key;
  node.replaceChildren(...shown.map(([colour, text]) => swatch(colour, text)));
}

function swatch(colour, text) {
  const square = element("i");
  square.style.background = colour;
  return element("span", {}, square, text);
}

function paint(node, background, text) {
  if (node.key === background + text) return;
  node.key = background + text;
  node.style.background = background;
  node.title = text;
  node.setAttribute("aria-label", text);
}

// ── pool ────────────────────────────────────────────────────────────────────

const RUNS = 100;
const STATES = ["used", "cached", "leased", "transfer", "pinned", "backend"];

export class Pool {
  constructor() {
    this.counts = element("div", { class: "counts" });
    this.title = element("h2");
    this.holders = new Table("Who holds its pages; a shared page counts for each", ["Holder", "#Pages"]);
    this.one = element("article", { class: "one", hidden: true }, element("div", { class: "head" }, this.title, element("a", { href: "#pool" }, "Close")), this.holders.node);
    this.kinds = new Table("Pages by kind", ["Kind of layer", "#Stage", "#Sheets", "#Page", "#Used", "#Cached", "#Leased", "#In transfer", "#Pinned", "#Free", "#Bytes used", "#Bytes cached"]);
    this.sheets = new Table("Sheets in order; neighbours that are alike share a row", ["Sheets", "#Stage", "Kind", "#Used", "#Cached", "#Leased", "#In transfer", "#Pinned", "#Backend"]);
    this.back = element("button", { type: "button", onclick: () => this.turn(-RUNS) }, "‹ Back");
    this.on = element("button", { type: "button", onclick: () => this.turn(RUNS) }, "More ›");
    this.details = element("details", { ontoggle: schedule }, element("summary", {}, "Every sheet as a table"), element("div", { class: "tools" }, this.back, this.on), this.sheets.node);
    this.node = section("Pool by kind", this.counts, element("p", { class: "quiet" }, "A page (elsewhere: a block) holds a few tokens for all layers of one kind. A sheet is a stretch of the pool: it has pages of one kind, or is free."), this.one, this.kinds.node, this.details);
    this.first = 0;
  }

  turn(by) {
    this.first = Math.max(0, this.first + by);
    schedule();
  }

  enter(name) {
    this.one.hidden = !name;
    this.asked = null;
    this.holders.update([]);
  }

  update(now, name) {
    if (!now.pool) return;
    const { stages } = now.pool, sheets = stages.reduce((sum, one) => sum + one.sheets, 0), free = stages.reduce((sum, one) => sum + one.free_sheets, 0);
    counts(this.counts, [[count(sheets), `sheets of ${bytes(stages[0].sheet_bytes)}`], [count(free), "of them free"], ...uses(stages)]);
    this.kinds.update(stages.flatMap((stage) => stage.kinds.map((kind) => [
      kind.kind, count(stage.stage), count(kind.sheets), `${bytes(kind.page_bytes)}, ${plural(kind.page_tokens, "token")}`,
      ...["used", "cached", "leased", "transfer", "pinned", "free"].map((state) => count(kind[`${state}_pages`])),
      count(kind.used_pages * kind.page_bytes), count(kind.cached_pages * kind.page_bytes)])));
    if (this.details.open) this.list(stages);
    if (name && this.asked !== `${name} ${now.step}`) this.ask(now, name);
  }

  list(stages) {
    const runs = stages.flatMap(runsOf);
    this.first = Math.min(this.first, Math.max(0, runs.length - 1));
    this.back.disabled = !this.first;
    this.on.disabled = this.first + RUNS >= runs.length;
    this.sheets.update(runs.slice(this.first, this.first + RUNS));
  }

  ask(now, name) {
    this.asked = `${name} ${now.step}`;
    const [stage, sheet] = name.split("/");
    write(this.title, `Sheet ${count(Number(sheet))} of stage ${stage}`);
    json(`/v1/inspect/sheets/${stage}/${sheet}${now.recording ? `?step=${now.step}` : ""}`).then((found) => {
      write(this.title, `Sheet ${count(found.sheet)} of stage ${found.stage}: ${found.kind ? `${found.kind}, ${plural(found.pages, "page")}` : "free"}`);
      this.holders.update(found.holders.map((one) => [one.is_request && isName(one.name) ? link(placeOf(one.name), label(one.name)) : one.name, count(one.pages)]));
    }).catch((error) => write(this.title, error.message));
  }
}

// Shares of the pool's bytes; free are also the pages that are left in sheets.
function uses(stages) {
  const all = stages.reduce((sum, one) => sum + one.sheets * one.sheet_bytes, 0), kinds = stages.flatMap((one) => one.kinds);
  const held = (state) => kinds.reduce((sum, kind) => sum + kind[`${state}_pages`] * kind.page_bytes, 0);
  const [used, cached, fixed, leased] = [held("used"), held("cached"), held("pinned") + held("backend"), held("leased")];
  return [[share(used, all), "used by requests"], [share(cached, all), leased ? "cached (evictable unless leased)" : "cached (evictable)"],
    ...(fixed ? [[share(fixed, all), "pinned or the backend's"]] : []), [share(all - used - cached - fixed, all), "free"]];
}

function runsOf(stage) {
  const { squares, kinds } = stage, runs = [];
  let last = "", begin = 0, cells = null;
  for (let sheet = 0; sheet <= stage.sheets; sheet++) {
    const own = sheet < stage.sheets ? [kinds[squares.kind[sheet]]?.kind ?? "free", ...STATES.map((state) => squares[state][sheet] ?? 0)] : [];
    const key = own.join();
    if (key === last && sheet) continue;
    if (cells) runs.push([begin === sheet - 1 ? count(begin) : `${count(begin)} – ${count(sheet - 1)}`, count(stage.stage), cells[0], ...cells.slice(1).map(count)]);
    [last, begin, cells] = [key, sheet, own];
  }
  return runs;
}

// ── reuse ───────────────────────────────────────────────────────────────────

export class Reuse {
  constructor() {
    this.counts = element("div", { class: "counts" });
    this.results = new Table("Admissions by result", ["Result of the prefix lookup", "#Requests", "=Share"]);
    this.missed = new Table("Prompt tokens computed again, by cause: they had been computed before, and were not found", ["Cause", "#Tokens", "#Pool memory that would have kept them"]);
    this.about = element("p", { class: "quiet" });
    this.chosen = element("span", { class: "quiet" });
    this.all = element("button", { type: "button", onclick: () => this.choose(null) }, "Show all");
    this.latest = new Table("The latest lookups, the newest first", ["Request", "#Step", "#Prompt tokens", "#Found", "Result", "Not found"]);
    this.node = section("Reuse", this.counts, this.results.node, this.missed.node, this.about, element("h3", {}, "Prefix lookups"), element("div", { class: "tools" }, this.chosen, this.all), this.latest.node);
    this.cause = null;
  }

  choose(cause) {
    this.cause = cause;
    schedule();
  }

  update(now) {
    const reuse = now.reuse;
    if (!reuse) return;
    const since = now.reader.is_admin ? "since the engine started" : "of this key's latest lookups";
    const total = Object.values(reuse.results).reduce((sum, number) => sum + number, 0);
    counts(this.counts, [[share(reuse.found_tokens, reuse.prompt_tokens), `of prompt tokens found in the pool, ${since}`], [count(total), "lookups"], [count(reuse.unit_tokens), "tokens in a reuse unit"], ...(reuse.disabled ? [["off", reuse.disabled]] : [])]);
    this.results.update(Object.entries(reuse.results).map(([code, number]) => [this.pick(`result ${code}`, code === "hit" ? "found in the pool, at least in part" : result(code)), count(number), bar(strips([[number / total, "var(--computed)"]]), share(number, total))]));
    this.missed.update(Object.entries(reuse.missed).map(([cause, tokens]) => [this.pick(`missed_${cause}`, result(cause)), count(tokens), tokens ? bytes(tokens * reuse.bytes_per_token) : "–"]));
    write(this.about, `What was computed before is known as far back as the engine remembers. Other tokens are in no cause: ${inUnits(reuse.unit_tokens)}, so up to ${count(reuse.unit_tokens - 1)} of them in each prompt may have been computed before. The last token of a prompt is always computed.`);
    this.list(reuse.latest, reuse.unit_tokens);
  }

  pick(cause, text) {
    this.picks ??= {};
    return (this.picks[cause] ??= action(text, () => this.choose(cause)));
  }

  list(latest, unit) {
    const causes = Object.keys(latest).filter((name) => name.startsWith("missed_"));
    const places = [...latest.name.keys()].filter((place) => !this.cause || (this.cause.startsWith("result ") ? latest.result[place] === this.cause.slice(7) : latest[this.cause]?.[place]));
    write(this.chosen, this.cause ? `Only: ${result(this.cause.replace(/^result |^missed_/, ""))}` : "Click a result or a cause above to see its requests alone.");
    this.all.hidden = !this.cause;
    this.latest.update(places.map((place) => [
      link(placeOf(latest.name[place]), label(latest.name[place])), count(latest.step[place]), count(latest.tokens[place]), count(latest.found[place]), lookup(latest.result[place], latest.tokens[place], latest.found[place], unit),
      notFound(latest.tokens[place], latest.found[place], Object.fromEntries(causes.map((cause) => [cause.slice(7), latest[cause][place]])), unit, latest.result[place])]));
  }
}

// ── sessions, tiers, ranks ──────────────────────────────────────────────────

const EVERYBODY = "everybody"; // the tenant of a server without keys

export class Sessions {
  constructor() {
    this.counts = element("div", { class: "counts" });
    this.leases = new Table("Leases: prefixes that stay until a time", ["Lease", "Tenant", "#Tokens", "#Memory", "Where", "#Ends in"]);
    this.tenants = new Table("Tenants that are active now", ["Tenant", "#Weight", "#Running", "#Its share of rows (batch slots)", "#Waiting", "#Memory, shared pages counted each time", "#Tokens served ÷ weight"]);
    this.everyone = element("div", {}, element("h3", {}, "Tenants"), this.tenants.node);
    this.node = section("Sessions", this.counts, this.leases.node, this.everyone);
  }

  update(now) {
    if (!now.sessions) return;
    const { leases, tenants } = now.sessions, size = leases.bytes.reduce((sum, one) => sum + one, 0);
    const hasKeys = tenants.name.some((name) => name !== EVERYBODY);
    const room = now.pool.stages.reduce((sum, one) => sum + one.lease_sheets * one.sheet_bytes, 0);
    counts(this.counts, [[count(leases.name.length), leases.name.length === 1 ? "lease" : "leases"], [bytes(size), `of ${bytes(room)} lease memory`], ...(hasKeys ? [[count(tenants.name.length), tenants.name.length === 1 ? "active tenant" : "active tenants"]] : [])]);
    this.everyone.hidden = !hasKeys;
    const clock = now.source === "server" ? Date.now() / 1000 : now.at;
    this.leases.update(rows(leases, "name", "tenant", "tokens", "bytes", "where", "until").map(([name, tenant, tokens, own, where, until]) => [name, tenant, count(tokens), bytes(own), where, until == null ? "–" : seconds(until - clock)]));
    this.tenants.update(rows(tenants, "name", "weight", "running", "share_rows", "waiting", "bytes", "served_tokens").map(([name, weight, running, part, waiting, own, served]) => [name, String(weight), count(running), String(part), count(waiting), bytes(own), count(served)]));
  }
}

export class Tiers {
  constructor() {
    this.none = element("p", {}, "This engine has no tiers: prefixes are kept in the pool alone. ", element("code", {}, "--host-memory"), " adds host memory.");
    this.table = new Table("Tiers below the pool", ["Tier", "State", "#Hits", "#Misses", "#Read", "#Reading", "#Reads in flight", "#Written", "#Writing", "#Writes in flight", "#Failures"]);
    this.node = section("Tiers", this.none, this.table.node);
    this.before = null;
  }

  update(now) {
    const { tiers } = now;
    this.none.hidden = tiers.name.length > 0;
    this.table.node.hidden = !tiers.name.length;
    this.table.update(tiers.name.map((name, place) => [
      name, tiers.can_read[place] && tiers.can_write[place] ? "up" : tiers.can_read[place] ? "reads only" : tiers.can_write[place] ? "writes only" : "down",
      count(tiers.hits[place]), count(tiers.misses[place]), ...["read", "write"].flatMap((way) => [bytes(tiers[`${way}_bytes`][place]), this.rate(tiers, way, place, now.at), count(tiers[`${way}_in_flight`][place])]),
      count(tiers.failures[place])]));
    if (!this.before || now.at - this.before.at >= 2) this.before = { at: now.at, tiers };
  }

  rate(tiers, way, place, at) {
    const { before } = this, passed = before ? at - before.at : 0;
    return passed > 0 ? `${bytes((tiers[`${way}_bytes`][place] - before.tiers[`${way}_bytes`][place]) / passed)}/s` : "–";
  }
}

export class Ranks {
  constructor() {
    this.table = new Table("Devices of this engine", ["Rank", "#Stage", "#Tensor rank", "Layers", "#Sheets", "#Pool", "#Unused"]);
    this.ledger = new Table("Planned memory of each device", ["Use", "#Rank", "#Bytes", "Basis"]);
    this.node = section("Ranks", element("p", { class: "quiet" }, "One engine with its devices. Each replica of a fleet has a server and a page of its own."), this.table.node, element("h3", {}, "Ledger"), this.ledger.node);
  }

  update({ ranks }) {
    if (this.ranks === ranks) return;
    this.ranks = ranks;
    this.table.update(ranks.map((one) => [String(one.rank), count(one.stage), count(one.tensor_rank), `${one.first_layer} – ${one.first_layer + one.layers - 1}`, count(one.sheets), bytes(one.pool_bytes), bytes(one.idle_bytes)]));
    this.ledger.update(ranks.flatMap((one) => rows(one.ledger, "use", "bytes", "basis").map(([use, size, basis]) => [use, String(one.rank), bytes(size), basis])));
  }
}

// ── what if ─────────────────────────────────────────────────────────────────

export class WhatIf {
  constructor() {
    this.length = element("input", { id: "length", type: "number", min: 1 });
    this.pool = element("input", { id: "pool-size", placeholder: "none, or 64MiB, 80GiB" });
    this.table = new Table("The planner's answers", ["Change", "#Concurrent requests", "#Compared with the plan", "#Longest request, tokens", "#Pool"]);
    this.text = element("p", { role: "status" });
    const form = element("form", { class: "row", onsubmit: (event) => { event.preventDefault(); this.ask(); } },
      element("label", {}, "Tokens of each request", this.length), element("label", {}, "Another pool size (a number alone is GiB)", this.pool), element("button", {}, "Compare"));
    this.node = section("What if", element("p", {}, "How many requests of one length generate at once, as planned and with one change each. Asking changes nothing."), form, this.text, this.table.node);
  }

  enter() {
    this.ask();
  }

  ask() {
    const pool = bytesOf(this.pool.value);
    if (Number.isNaN(pool)) return write(this.text, `${this.pool.value} is no size: give one such as 64MiB or 80GiB`);
    const query = new URLSearchParams({ ...(this.length.value ? { length: this.length.value } : {}), ...(pool ? { pool_bytes: pool } : {}) });
    json(`/v1/inspect/what-if?${query}`).then((found) => {
      const cut = Number(this.length.value) > found.length ? `A request has at most ${count(found.length)} tokens here, so the` : "The";
      this.length.value ||= found.length;
      write(this.text, `${cut} answers are for requests of ${count(found.length)} tokens each, prompt and output together, that share nothing.`);
      const [now] = found.table.requests;
      this.table.update(rows(found.table, "option", "requests", "max_length", "pool_bytes").map(([option, requests, longest, size], place) => [option, count(requests), place && now && requests != null ? `${(requests / now).toFixed(2)} ×` : "", count(longest), bytes(size)]));
    }).catch((error) => write(this.text, error.message));
  }

  update() {}
}
