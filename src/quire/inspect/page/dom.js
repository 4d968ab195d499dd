// Elements and tables that change only where their values do: most of a page is the same in the next frame.

export function element(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...inside);
  return made;
}

export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// For screen readers, whatever changes on the page twice a second: said once, when it is new.
export const announce = (text) => write(document.getElementById("announce"), text);

// Cells of rows: text, or one of these.
export const link = (href, text) => ({ href, text });
export const bar = (background, text) => ({ background, text });
export const action = (text, act) => ({ text, act });
const same = (one, other) =>
  one === other ||
  (one?.text !== undefined && one.text === other?.text && one.href === other?.href && one.background === other?.background && !one.act);

export class Table {
  // heads: titles; a number's begins with #, a wide column's with =
  constructor(caption, heads) {
    this.heads = heads;
    this.caption = element("caption", {}, caption);
    this.body = element("tbody");
    const row = element("tr", {}, ...heads.map((head) => element("th", { scope: "col", class: this.kind(head) }, head.replace(/^[#=]/, ""))));
    this.table = element("table", {}, this.caption, element("thead", {}, row), this.body);
    this.node = element("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": caption }, this.table);
    this.rows = [];
  }

  kind(head) {
    return head[0] === "#" ? "n" : head[0] === "=" ? "wide" : null;
  }

  // chosen: the number of the row that is marked
  update(values, chosen = -1) {
    while (this.rows.length > values.length) this.rows.pop().node.remove();
    values.forEach((cells, number) => {
      const row = (this.rows[number] ??= this.row());
      if (!row.node.isConnected || row.node.parentNode !== this.body) this.body.append(row.node);
      cells.forEach((value, place) => this.put(row, place, value));
      if (row.chosen !== (number === chosen)) row.node.classList.toggle("chosen", (row.chosen = number === chosen));
    });
    return this;
  }

  // A table without rows is not shown.
  fill(values) {
    this.node.hidden = !values.length;
    this.update(values);
  }

  row() {
    const cells = this.heads.map((head, place) =>
      element(place ? "td" : "th", { scope: place ? null : "row", class: this.kind(head) }));
    return { node: element("tr", {}, ...cells), cells, values: [] };
  }

  put(row, place, value) {
    if (same(row.values[place], value)) return;
    const cell = row.cells[place], before = row.values[place];
    row.values[place] = value;
    if (value?.href !== undefined) {
      if (before?.href === undefined) cell.replaceChildren(element("a"));
      cell.firstChild.setAttribute("href", value.href);
      write(cell.firstChild, value.text);
    } else if (value?.background !== undefined) {
      if (before?.background === undefined) cell.replaceChildren(element("div", { class: "bar", role: "img" }));
      cell.firstChild.style.background = value.background;
      cell.firstChild.setAttribute("aria-label", value.text);
      cell.firstChild.title = value.text;
    } else if (value?.act) {
      cell.replaceChildren(element("button", { type: "button", class: "plain", onclick: value.act }, value.text));
    } else {
      cell.textContent = value;
    }
  }
}

// Parts of a bar as a background: [[share of the whole, colour], …]; the rest is empty.
export function strips(parts, rest = "transparent") {
  let end = 0;
  const stops = [];
  for (const [size, colour] of parts) {
    const begin = end;
    end = Math.min(1, end + Math.max(0, size));
    if (end > begin) stops.push(`${colour} ${(100 * begin).toFixed(2)}% ${(100 * end).toFixed(2)}%`);
  }
  if (end < 1) stops.push(`${rest} ${(100 * end).toFixed(2)}% 100%`);
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

export function counts(node, pairs) {
  const key = pairs.map(([value, what, where]) => `${value} ${what} ${where?.text ?? ""}`).join("\n");
  if (node.key === key) return;
  node.key = key;
  node.replaceChildren(...pairs.map(([value, what, where]) => element("span", {}, element("b", {}, value), ` ${what}`, ...(where ? [element("a", { href: where.href }, where.text)] : []))));
}
