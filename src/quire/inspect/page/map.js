// The pool as a drawing: one square per sheet. Its colour is the kind; the filled part is used by requests, the pale part
// is cached. Only squares that changed are drawn.
import { bytes, count, plural } from "./document.js";
import { announce, element, write } from "./dom.js";

export const COLOURS = ["#3b6fb6", "#c9702b", "#3f8f5b", "#8f5bb0", "#b8485c", "#7d7a2c", "#2f8f99", "#7c6552"];
const MOST_HEIGHT = 460, LARGEST = 26;
const STATES = ["used", "cached", "leased", "transfer", "pinned", "backend"];
const COLUMNS = ["kind", ...STATES];
const at = (column, sheet) => column[sheet] ?? 0;

export class PoolMap {
  constructor(choose) {
    this.choose = choose; // called with (stage, sheet)
    this.holder = document.getElementById("canvases");
    this.pointed = document.getElementById("pointed");
    this.legend = document.getElementById("legend");
    this.stages = [];
    this.held = new Map(); // of the chosen request, by stage: sheet → pages
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    addEventListener("resize", () => this.redraw());
  }

  redraw() {
    for (const stage of this.stages) stage.drawn = null;
    if (this.pool) this.update(this.pool);
  }

  hold(held) {
    this.held = new Map();
    for (const { stage, sheets, pages } of held) {
      const own = this.held.get(stage) ?? new Map();
      sheets.forEach((sheet, place) => own.set(sheet, pages[place]));
      this.held.set(stage, own);
    }
    if (this.pool) this.update(this.pool);
  }

  update(pool) {
    this.pool = pool;
    if (this.stages.length !== pool.stages.length) this.build(pool);
    const shown = getComputedStyle(document.documentElement);
    this.colours = { free: shown.getPropertyValue("--free"), paper: shown.getPropertyValue("--paper"), ink: shown.getPropertyValue("--ink"), mark: shown.getPropertyValue("--mark") };
    this.explain(pool);
    pool.stages.forEach((stage, number) => this.draw(this.stages[number], stage));
    if (this.stages.some((stage) => stage.cursor != null)) this.point();
  }

  build(pool) {
    this.stages = pool.stages.map((_, number) => {
      const canvas = element("canvas", { tabindex: 0, role: "application", "aria-roledescription": "map", "aria-describedby": "map-keys" });
      const stage = { canvas, number, cursor: null };
      canvas.addEventListener("mousemove", (event) => this.move(stage, this.under(stage, event)));
      canvas.addEventListener("mouseleave", () => this.move(stage, null));
      canvas.addEventListener("click", (event) => this.take(stage, this.under(stage, event)));
      canvas.addEventListener("keydown", (event) => this.key(stage, event));
      canvas.addEventListener("blur", () => this.move(stage, null));
      return stage;
    });
    this.holder.replaceChildren(...this.stages.map((stage) => stage.canvas));
  }

  explain(pool) {
    const names = [...new Set(pool.stages.flatMap((stage) => stage.kinds.map((kind) => kind.kind)))];
    if (this.names?.join() === names.join()) return;
    this.names = names;
    const swatch = (colour, text) => {
      const square = element("i");
      square.style.background = colour;
      return element("span", {}, square, text);
    };
    const first = COLOURS[0];
    this.legend.replaceChildren(
      "kind of layer:", ...names.map((name) => swatch(this.colour(name), name)),
      "pages:", swatch(first, "used by requests"), swatch(`color-mix(in srgb, ${first} 38%, var(--free))`, "cached prefixes"),
      swatch("var(--free)", "free"),
      swatch(`radial-gradient(var(--ink) 25%, ${first} 30%)`, "leased"),
      swatch(`repeating-linear-gradient(45deg, ${first} 0 2px, var(--paper) 2px 4px)`, "in transfer"),
    );
  }

  colour(name) {
    return COLOURS[this.names.indexOf(name) % COLOURS.length];
  }

  size(stage, sheets) {
    const width = stage.canvas.clientWidth || 480, ratio = devicePixelRatio || 1;
    let cell = Math.min(LARGEST, Math.max(3, Math.floor(Math.sqrt((width * MOST_HEIGHT) / sheets))));
    const columns = Math.max(1, Math.floor(width / cell));
    const height = Math.ceil(sheets / columns) * cell;
    Object.assign(stage, { cell, columns, ratio });
    stage.canvas.width = Math.round(width * ratio);
    stage.canvas.height = Math.round(height * ratio);
    stage.canvas.style.height = `${height}px`;
    stage.drawn = { marks: new Uint8Array(sheets) };
    stage.canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  draw(stage, data) {
    if (stage.drawn?.marks.length !== data.sheets) this.size(stage, data.sheets);
    stage.data = data;
    const { squares } = data, before = stage.drawn.squares, marks = stage.drawn.marks;
    const held = this.held.get(stage.number), context = stage.canvas.getContext("2d");
    const changed = COLUMNS.filter((name) => before?.[name] !== squares[name]).map((name) => [before?.[name] ?? [], squares[name]]);
    for (let sheet = 0; sheet < data.sheets; sheet++) {
      const mark = (held?.has(sheet) ? 1 : 0) + (stage.cursor === sheet ? 2 : 0);
      if (before && mark === marks[sheet] && !changed.some(([old, now]) => at(old, sheet) !== at(now, sheet))) continue;
      marks[sheet] = mark;
      this.square(context, stage, data, sheet, held);
    }
    stage.drawn.squares = squares;
    const label = `Map of ${count(data.sheets)} sheets, stage ${data.stage}; the pool's tables have the same numbers`;
    if (stage.label !== label) stage.canvas.setAttribute("aria-label", (stage.label = label));
  }

  square(context, stage, data, sheet, held) {
    const { cell, columns } = stage, { squares } = data;
    const x = (sheet % columns) * cell, y = Math.floor(sheet / columns) * cell, side = cell > 4 ? cell - 1 : cell;
    context.fillStyle = this.colours.paper;
    context.fillRect(x, y, cell, cell);
    context.globalAlpha = 1;
    context.fillStyle = this.colours.free;
    context.fillRect(x, y, side, side);
    const kind = data.kinds[squares.kind[sheet]];
    if (kind) {
      const one = side / kind.pages_per_sheet;
      const used = at(squares.used, sheet) * one, cached = at(squares.cached, sheet) * one;
      context.fillStyle = this.colour(kind.kind);
      context.fillRect(x, y, used, side);
      context.globalAlpha = 0.38;
      context.fillRect(x + used, y, cached, side);
      context.globalAlpha = 1;
      if (at(squares.transfer, sheet)) this.hatch(context, x, y, side);
      context.fillStyle = this.colours.ink;
      if (at(squares.leased, sheet)) context.fillRect(x + side * 0.36, y + side * 0.36, side * 0.28, side * 0.28);
      if (at(squares.pinned, sheet) + at(squares.backend, sheet)) context.fillRect(x, y, side, Math.max(1, side * 0.14));
    }
    if (held?.has(sheet)) this.frame(context, x, y, side, this.colours.mark, Math.max(1, side * 0.2));
    if (stage.cursor === sheet) this.frame(context, x, y, side, this.colours.ink, Math.max(1, side * 0.12));
  }

  hatch(context, x, y, side) {
    context.strokeStyle = this.colours.paper;
    context.lineWidth = Math.max(1, side * 0.12);
    context.beginPath();
    context.moveTo(x, y + side);
    context.lineTo(x + side, y);
    context.stroke();
  }

  frame(context, x, y, side, colour, width) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(x + width / 2, y + width / 2, side - width, side - width);
  }

  under(stage, event) {
    const box = stage.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / stage.cell), line = Math.floor((event.clientY - box.top) / stage.cell);
    const sheet = line * stage.columns + column;
    return column < stage.columns && sheet < stage.data.sheets ? sheet : null;
  }

  move(stage, sheet) {
    if (stage.cursor === sheet) return;
    stage.cursor = sheet;
    this.draw(stage, stage.data);
    this.point();
  }

  take(stage, sheet) {
    if (sheet != null) this.choose(stage.number, sheet);
  }

  key(stage, event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: stage.columns, ArrowUp: -stage.columns, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      const next = stage.cursor == null && event.key !== "End" ? 0 : (stage.cursor ?? 0) + steps[event.key];
      this.move(stage, Math.max(0, Math.min(stage.data.sheets - 1, next)));
      announce(this.words(stage, stage.cursor));
    } else if (event.key === "Enter" || event.key === " ") {
      this.take(stage, stage.cursor);
    } else return;
    event.preventDefault();
  }

  point() {
    const stage = this.stages.find((one) => one.cursor != null);
    write(this.pointed, stage ? this.words(stage, stage.cursor) : "");
  }

  words(stage, sheet) {
    const { squares, kinds } = stage.data, kind = kinds[squares.kind[sheet]];
    if (!kind) return `Sheet ${count(sheet)}: free`;
    const states = STATES.map((state) => [at(squares[state], sheet), state === "transfer" ? "in transfer" : state]).filter(([pages]) => pages);
    const held = this.held.get(stage.number)?.get(sheet);
    return `Sheet ${count(sheet)}, ${kind.kind}, ${plural(kind.pages_per_sheet, "page")} of ${bytes(kind.page_bytes)}: ` + (states.map(([pages, state]) => `${plural(pages, "page")} ${state}`).join(", ") || "no page in use") + (held ? `; the chosen request holds ${held}` : "");
  }
}
