// Documents, differences between them, and how numbers are written. quire/inspect/difference.py makes the differences.

export function applied(before, change) {
  if ("set" in change) return change.set;
  if ("at" in change) {
    const after = before.slice();
    change.at.forEach((place, number) => {
      after[place] = "to" in change ? change.to[number] : applied(after[place], change.by[number]);
    });
    return after;
  }
  const after = { ...before };
  for (const key of change.without ?? []) delete after[key];
  for (const [key, part] of Object.entries(change.in ?? {})) after[key] = applied(after[key], part);
  return after;
}

// A table of the document is an object of columns; this makes a list of rows with these columns.
export function rows(table, ...names) {
  const columns = names.map((name) => table[name]);
  return columns[0].map((_, place) => columns.map((column) => column[place]));
}

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const count = (value) => (value == null ? "–" : WHOLE.format(value));
export const milliseconds = (value) => `${value < 10 ? value.toPrecision(2) : count(value)} ms`;

export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (Math.abs(value) >= 1024 && place < units.length - 1) [value, place] = [value / 1024, place + 1];
  return `${place ? value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0) : value} ${units[place]}`;
}

// Of a size as options take it (80GiB, 64MB); without a unit it is in GiB. 0: none is given, NaN: it is no size.
export function bytesOf(text) {
  const [, number, prefix, isBinary] = (/\d$/.test(text.trim()) ? `${text.trim()}GiB` : text.trim()).match(/^(\d+(?:\.\d+)?)\s*(?:([KMGT])(i)?)?B$/i) ?? [];
  if (number === undefined) return text.trim() ? NaN : 0;
  return Math.round(number * (isBinary ? 1024 : 1000) ** " KMGT".indexOf(prefix?.toUpperCase() ?? " "));
}

export const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export function seconds(value) {
  if (value == null) return "–";
  if (value < 120) return `${Math.max(0, value).toFixed(0)} s`;
  return value < 7200 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
}

// Reasons why requests wait, by code, as short as the top line needs them.
const WAITS = {
  memory: "for KV memory", queued: "queued", rows: "for a row (batch slot)", step_tokens: "for room in a step", prefix: "for a prefix that is being computed", cached_first: "after requests with cached prompts", first_page: "for a page",
  must_stay: "until they can stay", leased: "for room next to leases", preempted: "preempted", load_failed: "a load failed", in_line: "in line", another_engine: "computed by another engine",
};
export const waits = (code) => WAITS[code] ?? code;

// Whether the engine that the drawings are of has ended.
export const isGone = ({ status }) => status.state === "dead" || status.state === "starting";

// Results of prefix lookups and causes of tokens that were not found, by code.
const RESULTS = {
  hit: "found in the pool", no_overlap: "no cached prompt starts with the same tokens", below_unit: "the shared beginning is shorter than a reuse unit", tail_evicted: "the end of its sliding window was evicted",
  checkpoint_absent: "no state of recurrent layers is cached in it", scope: "cached for another scope (key) only", disabled: "prefix reuse is off", prompt_logprobs: "prompt log-probabilities were requested",
  evicted: "evicted before the request arrived", evicted_waiting: "evicted while the request waited", never_kept: "no sliding window or state was kept there", no_room: "no page was free for copies",
};
export const result = (code) => RESULTS[code] ?? code;

// A lookup's result: a hit may end before the last whole unit of the prompt, whose last token is always computed.
export function lookup(code, tokens, found, unit) {
  return code === "hit" && found < tokens - 1 - ((tokens - 1) % unit) ? "found in part" : result(code);
}

// Of a prompt's tokens: those that were not found, by cause. What was computed before in a part of a unit has no cause.
export function notFound(tokens, found, missed, unit, code) {
  const causes = Object.entries(missed).filter(([, number]) => number);
  const rest = tokens - found - causes.reduce((sum, [, number]) => sum + number, 0), most = Math.min(rest, unit - 1);
  const why = NOT_SOUGHT.includes(code) ? "not looked up" : `not found: ${inUnits(unit)}${most ? `, so up to ${count(most)} of these may have been computed before` : ""}`;
  return [...causes.map(([cause, number]) => `${count(number)}: ${result(cause)}`), ...(rest > 0 ? [`${count(rest)} ${why}`] : [])].join("; ");
}

const NOT_SOUGHT = ["disabled", "prompt_logprobs"];
export const inUnits = (unit) => `reuse is in whole units of ${plural(unit, "token")}`;
