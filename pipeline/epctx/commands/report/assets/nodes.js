/** The table of a model's nodes: what the drawing shows, in words, a piece at a time. */
class NodeTable {
  static PIECE = 100;

  constructor(details, eps, choose) {
    this.body = details.querySelector("tbody");
    this.count = details.querySelector(".count");
    this.more = details.querySelector(".more");
    this.details = details;
    this.eps = eps;
    this.choose = choose;
    this.level = null;
    this.found = [];
    this.selected = -1;
    this.more.addEventListener("click", () => this.append());
    details.addEventListener("toggle", () => this.fill());
  }

  /** Show these boxes of a level. */
  show(level, shown) {
    this.level = level;
    this.found = [];
    for (let box = 0; box < shown.length; box++) if (shown[box]) this.found.push(box);
    this.count.textContent = `${this.found.length.toLocaleString("en")} of ${shown.length.toLocaleString("en")}`;
    this.fill();
  }

  fill() {
    if (!this.details.open || this.level === null) return;
    this.body.replaceChildren();
    this.filled = 0;
    this.append();
  }

  append() {
    const rows = document.createDocumentFragment();
    for (const box of this.found.slice(this.filled, this.filled + NodeTable.PIECE)) rows.append(this.row(box));
    this.filled = Math.min(this.filled + NodeTable.PIECE, this.found.length);
    this.body.append(rows);
    this.more.hidden = this.filled >= this.found.length;
    this.mark(this.selected);
  }

  row(box) {
    const { level } = this;
    const row = document.createElement("tr");
    row.dataset.box = box;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = level.names[box];
    button.addEventListener("click", () => this.choose(box));
    const reason = level.reasons[box];
    for (const content of [String(box + 1), button, level.words[level.titles[box]], this.eps.name(level.eps[box]), reason < 0 ? "" : level.words[reason]]) {
      row.insertCell().append(content);
    }
    row.cells[0].className = "right";
    return row;
  }

  /** Mark the selected box, if its row is there. */
  mark(box) {
    this.selected = box;
    this.body.querySelector("[aria-current]")?.removeAttribute("aria-current");
    this.body.querySelector(`[data-box="${box}"]`)?.setAttribute("aria-current", "true");
  }
}
