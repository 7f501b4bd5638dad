/** Draws one level of a model, and only what can be seen of it. */
class GraphCanvas {
  /** Pixels of the frame that a font has at least, however far one zooms out. */
  static LEAST_FONT = 11;
  /** Pixels of the frame that a box must be wide for words in it. */
  static LEAST_WIDTH = 56;
  /** Texts whose cut is remembered. */
  static KNOWN = 20000;
  /** Height of a line over its font's. */
  static LINE = 1.3;
  /** Below it boxes are plain blocks of their EP's colour. */
  static BLOCKS = 0.2;

  constructor(canvas, viewport) {
    this.canvas = canvas;
    this.viewport = viewport;
    this.context = canvas.getContext("2d");
    this.cut = new Map();
    this.readColours();
  }

  /** Take the colours of the theme as it is now. */
  readColours() {
    const style = getComputedStyle(document.documentElement);
    const probe = this.canvas.appendChild(document.createElement("span"));
    const colour = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    this.colours = {
      ink: colour("ink"), muted: colour("muted"), surface: colour("surface"), edge: colour("edge"),
      focus: colour("focus"), back: colour("ep-default-bg"), left: colour("ep-default"),
      eps: [0, 1, 2, 3, 4, 5].map((place) => colour(`ep-${place}`)),
    };
    this.fonts = { sans: style.getPropertyValue("--sans"), mono: style.getPropertyValue("--mono") };
    probe.remove();
    this.cut.clear();
  }

  /** The colour of an EP by its place; -1 is the default EP. */
  colour(ep) {
    return ep < 0 ? this.colours.left : this.colours.eps[ep % this.colours.eps.length];
  }

  /** Take the frame's size; false: it has none, it is not shown. */
  measure() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const density = window.devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(width * density));
    this.canvas.height = Math.max(1, Math.round(height * density));
    this.viewport.width = width || 1;
    this.viewport.height = height || 1;
    this.density = density;
    return width > 0 && height > 0;
  }

  /**
   * Draw.
   * @param level what `drawing.Level` describes
   * @param shown of each box, whether filters let it through; the others are faint
   * @param selected a box, or -1
   * @returns how many boxes lie in the frame
   */
  draw(level, shown, selected) {
    const { context, viewport, density } = this;
    const { scale } = viewport;
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, viewport.width, viewport.height);
    context.setTransform(density * scale, 0, 0, density * scale, -viewport.x * scale * density, -viewport.y * scale * density);
    this.drawEdges(level, shown, selected);
    const visible = this.visible(level);
    if (scale < GraphCanvas.BLOCKS) this.drawBlocks(level, visible, shown);
    else for (const box of visible) this.drawBox(level, box, shown[box]);
    if (selected >= 0) this.drawSelection(level, selected);
    return visible.length;
  }

  /** Whether boxes are large enough for words. */
  writes(level) {
    const [width, height] = level.box;
    const { scale } = this.viewport;
    return width * scale >= GraphCanvas.LEAST_WIDTH && height * scale >= GraphCanvas.LEAST_FONT * GraphCanvas.LINE;
  }

  /** The least size of a font in the drawing's pixels, in steps, so that cut texts are found again. */
  get least() {
    return Math.ceil((4 * GraphCanvas.LEAST_FONT) / this.viewport.scale) / 4;
  }

  /** The boxes that lie in the frame. */
  visible(level) {
    const { viewport } = this;
    const [halfX, halfY] = [level.box[0] / 2, level.box[1] / 2];
    const [left, top] = [viewport.x - halfX, viewport.y - halfY];
    const [right, bottom] = viewport.at(viewport.width, viewport.height);
    const found = [];
    for (let box = 0; box < level.x.length; box++) {
      const x = level.x[box];
      const y = level.y[box];
      if (x > left && x < right + halfX && y > top && y < bottom + halfY) found.push(box);
    }
    return found;
  }

  drawEdges(level, shown, selected) {
    const { context, viewport, colours } = this;
    const [, bottom] = viewport.at(0, viewport.height);
    const [right] = viewport.at(viewport.width, 0);
    const paths = { plain: new Path2D(), faint: new Path2D(), chosen: new Path2D() };
    for (const edge of level.edges) {
      const bounds = this.bounds(level, edge);
      if (bounds[2] < viewport.x || bounds[0] > right || bounds[3] < viewport.y || bounds[1] > bottom) continue;
      const chosen = selected >= 0 && (edge[0] === selected || edge[1] === selected);
      const kind = chosen ? "chosen" : shown[edge[0]] && shown[edge[1]] ? "plain" : "faint";
      this.trace(paths[kind], level, edge);
    }
    const width = Math.max(1.2, 0.7 / viewport.scale);
    context.lineJoin = "round";
    context.setLineDash([]);
    for (const [kind, colour, alpha, line] of [["faint", colours.edge, 0.25, width], ["plain", colours.edge, 1, width], ["chosen", colours.focus, 1, width * 1.8]]) {
      context.globalAlpha = alpha;
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.stroke(paths[kind]);
    }
    context.globalAlpha = 1;
  }

  bounds(level, edge) {
    let [left, right] = [level.x[edge[0]], level.x[edge[1]]].sort((a, b) => a - b);
    let [top, bottom] = [level.y[edge[0]], level.y[edge[1]]].sort((a, b) => a - b);
    for (let point = 2; point < edge.length; point += 2) {
      left = Math.min(left, edge[point]);
      right = Math.max(right, edge[point]);
      top = Math.min(top, edge[point + 1]);
      bottom = Math.max(bottom, edge[point + 1]);
    }
    return [left, top, right, bottom];
  }

  /** An edge from the lower side of a box to the upper one of another: curves down, corners aside. */
  trace(path, level, edge) {
    const half = level.box[1] / 2;
    const points = [[level.x[edge[0]], level.y[edge[0]] + half]];
    for (let point = 2; point < edge.length; point += 2) points.push([edge[point], edge[point + 1]]);
    points.push([level.x[edge[1]], level.y[edge[1]] - half]);
    path.moveTo(...points[0]);
    const aside = points.length > 3 && points[1][0] === points[0][0] && points[2][1] === points[1][1];
    if (aside) {
      for (let at = 1; at < points.length - 1; at++) path.arcTo(...points[at], ...points[at + 1], 7);
      path.lineTo(...points[points.length - 1]);
      return;
    }
    for (let at = 1; at < points.length; at++) {
      const [[fromX, fromY], [toX, toY]] = [points[at - 1], points[at]];
      const bend = (toY - fromY) / 2;
      if (fromX === toX) path.lineTo(toX, toY);
      else path.bezierCurveTo(fromX, fromY + bend, toX, toY - bend, toX, toY);
    }
  }

  drawBlocks(level, visible, shown) {
    const { context } = this;
    const [width, height] = level.box;
    const blocks = new Map();
    for (const box of visible) {
      const key = `${level.eps[box]} ${shown[box] ? 1 : 0.18}`;
      if (!blocks.has(key)) blocks.set(key, []);
      blocks.get(key).push(box);
    }
    // What was left to the default EP comes last and never vanishes: it is what one looks for.
    const order = [...blocks.keys()].map((key) => key.split(" ").map(Number)).sort((a, b) => b[0] - a[0]);
    for (const [ep, alpha] of order) {
      const least = ep < 0 ? 4 / this.viewport.scale : 0;
      const [across, down] = [Math.max(width, least), Math.max(height, least)];
      context.fillStyle = this.colour(ep);
      context.globalAlpha = alpha;
      for (const box of blocks.get(`${ep} ${alpha}`)) context.fillRect(level.x[box] - across / 2, level.y[box] - down / 2, across, down);
    }
    context.globalAlpha = 1;
  }

  drawBox(level, box, shown) {
    const { context, colours, viewport } = this;
    const [width, height] = level.box;
    const [left, top] = [level.x[box] - width / 2, level.y[box] - height / 2];
    const ep = level.eps[box];
    const fallback = ep < 0;
    context.globalAlpha = shown ? 1 : 0.22;
    context.beginPath();
    context.roundRect(left, top, width, height, 6);
    context.fillStyle = fallback ? colours.back : colours.surface;
    context.fill();
    context.lineWidth = fallback ? 1.8 : 1.2;
    context.setLineDash(fallback ? [5, 3] : []);
    context.strokeStyle = this.colour(ep);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = this.colour(ep);
    context.beginPath();
    context.roundRect(left, top, 6, height, [6, 0, 0, 6]);
    context.fill();
    if (this.writes(level)) this.drawWords(level, box, left + 13, width - 20);
    else {
      context.globalAlpha *= fallback ? 0.9 : 0.4;
      context.fillRect(left, top, width, height);
    }
    context.globalAlpha = 1;
  }

  /** As many of a box's lines as there is room for, in its middle; each as [text, style, size, font]. */
  drawWords(level, box, left, width) {
    const { context, fonts } = this;
    const large = level.spans.length > 0;
    const reason = level.reasons[box] < 0 ? level.spans[box] : level.words[level.reasons[box]];
    const texts = [level.words[level.titles[box]], level.names[box], reason].filter(Boolean);
    let room = level.box[1] - 2;
    const lines = [];
    for (const text of texts) {
      const size = Math.max(lines.length ? (large ? 12 : 11) : (large ? 14 : 12), this.least);
      room -= size * GraphCanvas.LINE;
      if (room < 0 && lines.length) break;
      lines.push([text, size]);
    }
    let y = level.y[box] - lines.reduce((sum, [, size]) => sum + size * GraphCanvas.LINE, 0) / 2;
    context.textBaseline = "middle";
    lines.forEach(([text, size], line) => {
      context.fillStyle = line ? this.colours.muted : this.colours.ink;
      context.font = `${line ? "" : "600 "}${size}px ${fonts.sans}`;
      context.fillText(this.fitted(text, width, !large && line === 1), left, y + size * GraphCanvas.LINE / 2);
      y += size * GraphCanvas.LINE;
    });
  }

  /** A text cut to a width in the current font; `front`: it is its front that goes, as of long names. */
  fitted(text, width, front) {
    const key = `${this.context.font}${text}`;
    const known = this.cut.get(key);
    if (known !== undefined) return known;
    let found = text;
    if (this.context.measureText(text).width > width) {
      let [least, most] = [1, text.length];
      while (least < most) {
        const middle = (least + most + 1) >> 1;
        const piece = front ? `…${text.slice(-middle)}` : `${text.slice(0, middle)}…`;
        if (this.context.measureText(piece).width > width) most = middle - 1;
        else least = middle;
      }
      found = front ? `…${text.slice(-least)}` : `${text.slice(0, least)}…`;
    }
    if (this.cut.size > GraphCanvas.KNOWN) this.cut.clear();
    this.cut.set(key, found);
    return found;
  }

  drawSelection(level, box) {
    const { context, colours, viewport } = this;
    const [width, height] = level.box;
    const line = Math.max(3, 2 / viewport.scale);
    context.lineWidth = line;
    context.strokeStyle = colours.focus;
    context.beginPath();
    context.roundRect(level.x[box] - width / 2 - line, level.y[box] - height / 2 - line, width + 2 * line, height + 2 * line, 8);
    context.stroke();
  }
}
