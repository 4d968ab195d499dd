// What requests are called: as their clients named them (x-request-id), or else as the engine does. Answers have the
// engine's name in their id. A name stays known after its request has ended, for as long as the page is open.
import { element } from "./dom.js";

const MOST = 20_000;
const given = new Map();
let read = null;

export function learn(table) {
  if (table.name === read) return;
  read = table.name;
  if (given.size > MOST) given.clear();
  read.forEach((name, place) => {
    const client = table.client_id[place], choice = name.slice(name.lastIndexOf("-") + 1);
    if (client && !client.startsWith("req_")) given.set(name, choice === "0" ? client : `${client}, choice ${choice}`);
  });
}

export const label = (name) => given.get(name) ?? name;
export const placeOf = (name) => `#requests/${encodeURIComponent(name)}`;

// Holders that are no requests, and requests of other keys.
export const isName = (name) => !/^(another|other keys|cache|pins|backend|[\d,]+ others?)$/.test(name);

// A text of the engine with links in place of the names in it; `own`: the name that the text is about. A name that is a
// number is not sought: any number could be it.
export function linked(text, names, own = "") {
  const known = [...new Set(names)].filter((name) => isName(name) && !/^\d+$/.test(name)).sort((one, other) => other.length - one.length);
  if (!known.length) return [text];
  const pattern = new RegExp(`(?<![\\w-])(${known.map((name) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})(?![\\w-])`);
  return text.split(pattern).map((part, place) => (place % 2 && part !== own ? element("a", { href: placeOf(part) }, label(part)) : label(part)));
}
