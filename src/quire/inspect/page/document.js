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

export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (Math.abs(value) >= 1024 && place < units.length - 1) [value, place] = [value / 1024, place + 1];
  return `${place ? value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0) : value} ${units[place]}`;
}

export const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export function seconds(value) {
  if (value == null) return "–";
  if (value < 120) return `${Math.max(0, value).toFixed(0)} s`;
  return value < 7200 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
}
