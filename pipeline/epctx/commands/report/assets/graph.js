/** The names of a report's EPs. */
class Providers {
  constructor(aliases) {
    this.aliases = aliases;
  }

  name(ep) {
    return ep < 0 ? "default EP" : this.aliases[ep];
  }
}

/** One model's graph: drawing, controls, keyboard, what is selected, and the table of its nodes. */
class GraphView {
  static SMALL = 400;
  static STEP = 1.35;
  /** Pixels to one of the drawing's from which on it is read without effort. */
  static READABLE = 0.8;

  constructor(details, eps) {
    this.details = details;
    this.eps = eps;
    this.canvas = details.querySelector("canvas");
    this.side = details.querySelector(".graph-side");
    this.search = details.querySelector("input");
    this.seen = details.querySelector(".graph-seen");
    this.viewport = new Viewport();
    this.drawer = new GraphCanvas(this.canvas, this.viewport);
    this.drawing = JSON.parse(document.getElementById(details.dataset.drawing).textContent);
    this.table = new NodeTable(details.querySelector(".nodes"), eps, (box) => this.choose("nodes", box));
    this.hidden = new Set();
    this.selected = -1;
    this.listen();
    this.filter();
    this.drawer.measure();
    const few = this.drawing.units.names.length < 3 && this.drawing.nodes.names.length <= GraphView.SMALL;
    this.setLevel(few ? "nodes" : "units");
    this.drawNow();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  get level() {
    return this.drawing[this.name];
  }

  /** Show partitions (`units`) or `nodes`, all of them. */
  setLevel(name) {
    this.name = name;
    for (const button of this.details.querySelectorAll("[data-level]")) {
      button.setAttribute("aria-pressed", String(button.dataset.level === name));
    }
    this.links = null;
    this.select(-1);
    this.start();
  }

  /** The boxes before and after each box of this level. */
  get neighbours() {
    if (this.links === null) {
      this.links = this.level.names.map(() => ({ before: [], after: [] }));
      for (const [from, to] of this.level.edges) {
        this.links[from].after.push(to);
        this.links[to].before.push(from);
      }
    }
    return this.links;
  }

  /** What is seen first: all of it if that can be read, else where the model starts. */
  start() {
    this.fit();
    if (this.viewport.scale < GraphView.READABLE) {
      this.viewport.top(this.level.x[0], this.level.width, GraphView.READABLE);
    }
  }

  fit() {
    this.viewport.fit(0, 0, this.level.width, this.level.height);
    this.draw();
  }

  /** Draw at once: with its new size the canvas is blank, and this frame shows it. */
  resize() {
    const first = this.viewport.width === 1;
    if (!this.drawer.measure()) return;
    if (first) this.start();
    this.drawNow();
  }

  /** Draw with the next frame, once. */
  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.drawNow();
    });
  }

  /** Apply the search and the EPs to both levels; a unit is shown if a node of it is. */
  filter() {
    const wanted = this.search.value.trim().toLowerCase();
    const { nodes, units } = this.drawing;
    const matching = nodes.words.map((word) => word.toLowerCase().includes(wanted));
    const unitShown = units.names.map(() => false);
    const nodeShown = nodes.names.map((name, box) => {
      const reason = nodes.reasons[box];
      const found = name.toLowerCase().includes(wanted) || matching[nodes.titles[box]] || (reason >= 0 && matching[reason]);
      const shown = found && !this.hidden.has(nodes.eps[box]);
      if (shown) unitShown[nodes.units[box]] = true;
      return shown;
    });
    this.shown = { nodes: nodeShown, units: unitShown };
    this.table.show(nodes, nodeShown);
  }

  /** Select a box of a level and go there. */
  choose(level, box) {
    if (this.name !== level) this.setLevel(level);
    this.select(box);
    this.viewport.scale = Math.max(this.viewport.scale, GraphView.READABLE);
    this.viewport.center(this.level.x[box], this.level.y[box]);
    this.draw();
  }

  select(box) {
    this.selected = box;
    this.side.replaceChildren(...(box < 0 ? this.summary() : this.about(box)));
    if (this.name === "nodes") this.table.mark(box);
    this.draw();
  }

  summary() {
    const { nodes, units } = this.drawing;
    const left = nodes.eps.flatMap((ep, node) => (ep < 0 ? [node] : []));
    const told = [
      element("h5", "", this.details.dataset.model),
      element("p", "muted", `${nodes.names.length.toLocaleString("en")} nodes in ${units.names.length.toLocaleString("en")} ${units.names.length === 1 ? "part" : "parts"}; ${left.length.toLocaleString("en")} on the default EP. Nothing is selected.`),
    ];
    if (left.length) {
      const facts = element("dl");
      this.listBoxes(facts, "Left to the default EP", left, "nodes");
      told.push(facts);
    }
    return told;
  }

  about(box) {
    const { level } = this;
    const ep = level.eps[box];
    const told = [element("h5", "", level.words[level.titles[box]]), element("p", "name", level.names[box])];
    const facts = element("dl");
    const mine = this.name === "nodes" ? this.drawing.units : null;
    facts.append(element("dt", "", "Runs on"), element("dd", "", this.eps.name(ep)));
    if (mine) facts.append(element("dt", "", "In"), element("dd", "", mine.words[mine.titles[level.units[box]]]));
    const { before, after } = this.neighbours[box];
    this.listBoxes(facts, "Needs", before);
    this.listBoxes(facts, "Needed by", after);
    if (level.reasons[box] >= 0) told.push(element("p", "why", level.words[level.reasons[box]]));
    told.push(facts);
    if (this.name === "units") {
      const open = element("button", "open", "Show its nodes");
      open.type = "button";
      open.addEventListener("click", () => this.openUnit(box));
      told.push(open);
    }
    return told;
  }

  listBoxes(facts, title, boxes, name = this.name) {
    const level = this.drawing[name];
    const list = element("ul");
    for (const box of boxes.slice(0, 8)) {
      const button = element("button", "", `${level.words[level.titles[box]]} ${level.names[box]}`);
      button.type = "button";
      button.addEventListener("click", () => this.choose(name, box));
      const item = element("li");
      item.append(button);
      list.append(item);
    }
    if (boxes.length > 8) list.append(element("li", "muted", `and ${boxes.length - 8} more`));
    const told = element("dd");
    told.append(boxes.length ? list : element("span", "muted", "nothing"));
    facts.append(element("dt", "", title), told);
  }

  /** Show the nodes of a unit, as large as they can be seen together. */
  openUnit(unit) {
    this.setLevel("nodes");
    const { x, y, units, box } = this.level;
    const inside = [];
    for (let node = 0; node < units.length; node++) if (units[node] === unit) inside.push(node);
    const xs = inside.map((node) => x[node]);
    const ys = inside.map((node) => y[node]);
    const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
    const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
    const [left, top] = [least(xs) - box[0] / 2, least(ys) - box[1] / 2];
    this.select(inside[0]);
    this.viewport.fit(left, top, most(xs) + box[0] / 2 - left, most(ys) + box[1] / 2 - top);
    this.canvas.focus({ preventScroll: true });
    this.draw();
  }

  listen() {
    const { details, canvas } = this;
    for (const button of details.querySelectorAll("[data-level]")) {
      button.addEventListener("click", () => this.setLevel(button.dataset.level));
    }
    for (const button of details.querySelectorAll("[data-ep]")) {
      button.addEventListener("click", () => this.toggleProvider(button));
    }
    for (const button of details.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => this.zoomBy(button.dataset.zoom));
    }
    this.search.addEventListener("input", () => { this.filter(); this.draw(); });
    this.search.addEventListener("keydown", (event) => { if (event.key === "Enter") this.nextFound(); });
    canvas.addEventListener("contextrestored", () => this.drawNow());
    canvas.addEventListener("keydown", (event) => this.press(event));
    canvas.addEventListener("wheel", (event) => this.turn(event), { passive: false });
    canvas.addEventListener("dblclick", () => { if (this.name === "units" && this.selected >= 0) this.openUnit(this.selected); });
    this.drag();
  }

  toggleProvider(button) {
    const ep = Number(button.dataset.ep);
    if (!this.hidden.delete(ep)) this.hidden.add(ep);
    button.setAttribute("aria-pressed", String(!this.hidden.has(ep)));
    this.filter();
    this.draw();
  }

  zoomBy(way) {
    if (way === "fit") this.fit();
    else this.viewport.zoom(way === "in" ? GraphView.STEP : 1 / GraphView.STEP);
    this.draw();
  }

  /** Enter in the search: the next node that it finds. */
  nextFound() {
    const found = this.table.found;
    if (!found.length) return;
    const start = this.name === "nodes" ? this.selected : -1;
    this.choose("nodes", found.find((box) => box > start) ?? found[0]);
  }

  /** The wheel scrolls the page until the graph has been clicked, or the control key is held. */
  turn(event) {
    if (!event.ctrlKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    this.viewport.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.offsetX, event.offsetY);
    this.draw();
  }

  press(event) {
    const moves = { ArrowDown: "after", ArrowUp: "before", ArrowLeft: -1, ArrowRight: 1, Home: "first", End: "last" };
    const { key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (key in moves) this.go(moves[key]);
    else if (key === "+" || key === "=") this.zoomBy("in");
    else if (key === "-") this.zoomBy("out");
    else if (key === "0") this.fit();
    else if (key === "Enter" && this.name === "units" && this.selected >= 0) this.openUnit(this.selected);
    else if (key === "Escape") this.select(-1);
    else return;
    event.preventDefault();
  }

  go(move) {
    const last = this.level.names.length - 1;
    let next = this.selected;
    if (move === "first" || next < 0) next = 0;
    else if (move === "last") next = last;
    else if (typeof move === "number") next = Math.min(Math.max(next + move, 0), last);
    else next = this.neighbours[next][move][0] ?? next;
    this.select(next);
    const [x, y] = [this.level.x[next], this.level.y[next]];
    if (!this.drawer.writes(this.level)) this.choose(this.name, next);
    else if (!this.viewport.shows(x, y)) this.viewport.center(x, y);
    this.draw();
  }

  /** One finger or button pans, two fingers zoom; what was not moved was a click. */
  drag() {
    const { canvas, viewport } = this;
    const down = new Map();
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      down.set(event.pointerId, event);
      canvas.setPointerCapture(event.pointerId);
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = down.get(event.pointerId);
      if (!before) return;
      const other = [...down.values()].find((each) => each.pointerId !== event.pointerId);
      if (other) {
        const apart = (each) => Math.hypot(each.offsetX - other.offsetX, each.offsetY - other.offsetY);
        viewport.zoom(apart(event) / Math.max(apart(before), 1), other.offsetX, other.offsetY);
      } else viewport.pan(event.offsetX - before.offsetX, event.offsetY - before.offsetY);
      moved += Math.abs(event.offsetX - before.offsetX) + Math.abs(event.offsetY - before.offsetY);
      down.set(event.pointerId, event);
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      down.delete(event.pointerId);
      if (moved < 4) this.select(this.under(event.offsetX, event.offsetY));
    });
    canvas.addEventListener("pointercancel", (event) => down.delete(event.pointerId));
  }

  /** The box under a point of the frame, or -1. */
  under(frameX, frameY) {
    const [x, y] = this.viewport.at(frameX, frameY);
    const { level } = this;
    const [halfX, halfY] = [level.box[0] / 2, level.box[1] / 2];
    return level.x.findIndex((each, box) => Math.abs(each - x) <= halfX && Math.abs(level.y[box] - y) <= halfY);
  }

  /** The theme has changed. */
  recolour() {
    this.drawer.readColours();
    this.draw();
  }

  drawNow() {
    const visible = this.drawer.draw(this.level, this.shown[this.name], this.selected);
    this.seen.textContent = `${visible.toLocaleString("en")} of ${this.level.names.length.toLocaleString("en")} boxes are in view.`;
    this.details.dataset.drawn = this.name;
  }

  /** For a printer, which waits for no frame. */
  print() {
    this.drawer.readColours();
    if (this.drawer.measure()) this.drawNow();
  }
}

/** An element with a class and a text; a text is never markup. */
function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}
