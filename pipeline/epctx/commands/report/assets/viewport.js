"use strict";

/** What part of a drawing a frame shows: `scale` pixels to one of the drawing's, from (`x`, `y`). */
class Viewport {
  static LEAST = 0.01;
  static MOST = 3;

  constructor() {
    this.scale = 1;
    this.x = 0;
    this.y = 0;
    this.width = 1;
    this.height = 1;
  }

  /** Show a rectangle whole, in the middle, no larger than `most`. */
  fit(left, top, width, height, most = 1.25) {
    const margin = 24;
    const across = (this.width - 2 * margin) / Math.max(width, 1);
    const down = (this.height - 2 * margin) / Math.max(height, 1);
    this.scale = Math.min(Math.max(Math.min(across, down), Viewport.LEAST), most);
    this.center(left + width / 2, top + height / 2);
  }

  /** Put a point of the drawing into the middle. */
  center(x, y) {
    this.x = x - this.width / this.scale / 2;
    this.y = y - this.height / this.scale / 2;
  }

  /** Show the upper end of a drawing that is so wide, as much of it around `x` as there is room for. */
  top(x, width, scale) {
    const margin = 24 / scale;
    const seen = this.width / scale;
    this.scale = scale;
    this.x = Math.max(Math.min(x - seen / 2, width + margin - seen), -margin);
    if (width + 2 * margin < seen) this.x = (width - seen) / 2;
    this.y = -margin;
  }

  /** Zoom by a factor around a point of the frame. */
  zoom(factor, atX = this.width / 2, atY = this.height / 2) {
    const scale = Math.min(Math.max(this.scale * factor, Viewport.LEAST), Viewport.MOST);
    this.x += atX / this.scale - atX / scale;
    this.y += atY / this.scale - atY / scale;
    this.scale = scale;
  }

  /** Move by pixels of the frame. */
  pan(byX, byY) {
    this.x -= byX / this.scale;
    this.y -= byY / this.scale;
  }

  /** The drawing's point under a point of the frame. */
  at(frameX, frameY) {
    return [this.x + frameX / this.scale, this.y + frameY / this.scale];
  }

  /** Whether a point of the drawing can be seen well inside the frame. */
  shows(x, y, margin = 60) {
    const inX = (x - this.x) * this.scale;
    const inY = (y - this.y) * this.scale;
    return inX > margin && inY > margin && inX < this.width - margin && inY < this.height - margin;
  }
}
