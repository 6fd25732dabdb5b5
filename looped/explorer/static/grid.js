// A grid of position × step on canvas, as both the network and the program are drawn.
// What a cell holds is decided elsewhere: `cell(step, position)` gives {text, fill, ink, wrong}.
// Cells are painted once onto a sheet that is kept; scrubbing only lays a veil over the steps to come.

import { mix, theme } from "./colours.js";

const LEFT = 34; // for the steps' numbers
const GAP = 4; // between the question's rows and the first step
const LARGEST = 5000; // pixels of a sheet's side beyond which it is not drawn in double resolution

/** Sizes that two grids of one question share: fitted to a width and height, or `large` enough for letters. */
export function geometry({ columns, rows, width, height, right, widest, large }) {
  const room = width - LEFT - right - 2;
  const wide = Math.max(large ? 8 + 6 * widest : 4, Math.min(Math.max(24, 5 + 6 * widest), Math.floor(room / columns)));
  const high = Math.max(large ? 17 : 6, Math.min(22, Math.floor(height / rows), Math.max(wide + 4, 9)));
  const letters = wide >= 5 + 6 * widest - (widest > 1 ? 3 : 0) && high >= 10;
  return { columns, rows, wide, high, right, letters, font: Math.min(13, high - 2, wide * (widest > 1 ? 0.62 : 1.02), (wide - 2) / (0.61 * widest)) };
}

export class Grid {
  /** `on.step(step)` when a step is chosen, `on.point(step, position, x, y)` when a cell is pointed at, or null. */
  constructor(head, canvas, on) {
    this.head = head; this.canvas = canvas; this.on = on;
    this.sheet = document.createElement("canvas");
    this.cursor = null;
    canvas.addEventListener("pointermove", (event) => this.#pointed(event));
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.point(null); }); // a tap stays
    canvas.addEventListener("blur", () => this.point(null));
    canvas.addEventListener("click", (event) => { const at = this.#at(event); if (at) { on.step(at.step); this.point(at); } });
    canvas.parentElement.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Begins anew: `what` has rows (of the head), cell, marks and lines; see `cells.js`. */
  show(size, what) {
    this.size = size; this.what = what; this.painted = -1;
    const width = LEFT + size.columns * size.wide + size.right;
    const height = size.rows * size.high + 4;
    this.scale = Math.max(width, height) > LARGEST ? 1 : Math.min(2, devicePixelRatio || 1);
    for (const [canvas, tall] of [[this.canvas, height], [this.sheet, height], [this.head, what.head.length * this.#headHigh() + GAP + 10]]) {
      canvas.width = width * this.scale; canvas.height = tall * this.scale;
      canvas.style.width = `${width}px`; canvas.style.height = `${tall}px`;
    }
    this.left = this.canvas.parentElement.scrollLeft;
    this.#paintHead();
    this.paint();
  }

  /** Adds the steps that have come since to the sheet, then draws. */
  paint(current = this.current ?? 0) {
    this.current = current;
    if (!this.what) return;
    const pen = this.sheet.getContext("2d");
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    for (let step = this.painted + 1; step < Math.min(this.what.known(), this.size.rows); step++) {
      this.#paintRow(pen, step);
      this.painted = step;
    }
    this.#draw();
  }

  /** Everything again, after a change of theme. */
  repaint() { if (this.what) this.show(this.size, this.what); }

  /** Puts the cursor on a cell, or takes it away. */
  point(cell) {
    this.cursor = cell;
    this.#draw();
    if (!cell) return this.on.point(null);
    const box = this.canvas.getBoundingClientRect();
    this.on.point(cell.step, cell.position, box.left + this.#x(cell.position + 1), box.top + this.#y(cell.step));
  }

  #x(position) { return LEFT + position * this.size.wide; }
  #y(step) { return step * this.size.high; }

  /** The steps' numbers and the names of the first rows stay in sight. */
  #scrolled() {
    if (!this.what || this.left === this.canvas.parentElement.scrollLeft) return;
    this.left = this.canvas.parentElement.scrollLeft;
    this.#paintHead();
    this.#draw();
  }

  #headHigh() { return Math.max(13, this.size.high); }

  #paintHead() {
    const pen = this.head.getContext("2d"), { head } = this.what, { columns, wide, font } = this.size, high = this.#headHigh(), colours = theme();
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.fillStyle = colours.card;
    pen.fillRect(0, 0, this.head.width, this.head.height);
    pen.textBaseline = "middle";
    head.forEach((row, i) => {
      const y = i * high + 8;
      pen.font = `600 ${font}px ${colours.mono}`; pen.textAlign = "center";
      for (let p = 0; p < columns; p++) {
        if (this.size.letters) {
          pen.fillStyle = row.faint(p) ? colours.muted : colours.ink;
          pen.fillText(row.text(p), this.#x(p) + wide / 2, y + high / 2);
        } else if (row.shade(p)) { // too small for letters: darker is a larger symbol
          pen.fillStyle = mix(colours.card, colours.ink, row.shade(p));
          pen.fillRect(this.#x(p), y + 2, wide - (wide > 5 ? 1 : 0), high - 4);
        }
      }
    });
    pen.fillStyle = colours.line;
    pen.fillRect(LEFT, head.length * high + GAP + 8, columns * wide, 1);
    this.#trainedColumn(pen, 0, this.head.height);
    this.#margin(pen, this.head.height);
    pen.font = `10px ${colours.sans}`; pen.fillStyle = colours.muted; pen.textAlign = "left";
    head.forEach((row, i) => pen.fillText(row.label, this.left, (i + 0.5) * high + 8));
  }

  /** An empty strip at the frame's left edge. */
  #margin(pen, height) {
    pen.fillStyle = theme().card;
    pen.fillRect(this.left, 0, LEFT - 2, height);
  }

  #numbers(pen) {
    const { high, rows } = this.size, colours = theme(), every = high >= 11 ? (rows > 40 ? 5 : 1) : 10;
    this.#margin(pen, rows * high);
    pen.font = `10px ${colours.sans}`; pen.fillStyle = colours.muted; pen.textAlign = "right"; pen.textBaseline = "middle";
    for (let step = 0; step <= this.painted; step += every) {
      pen.fillText(step === 0 ? this.what.zero : step, this.left + LEFT - 8, this.#y(step) + high / 2 + 0.5);
    }
  }

  #paintRow(pen, step) {
    const { columns, wide, high, letters, font } = this.size, colours = theme(), y = this.#y(step), inset = wide >= 10 ? 0.5 : 0;
    pen.textBaseline = "middle"; pen.textAlign = "center"; pen.font = `${font}px ${colours.mono}`;
    for (let p = 0; p < columns; p++) {
      const cell = this.what.cell(step, p), x = this.#x(p);
      if (!cell) continue;
      if (cell.fill) { pen.fillStyle = cell.fill; pen.fillRect(x + inset, y + inset, wide - 2 * inset, high - 2 * inset); }
      if (cell.wrong && wide >= 10) {
        pen.fillStyle = colours.corner;
        const corner = Math.min(5, wide / 3.4);
        pen.beginPath(); pen.moveTo(x + wide - inset, y + inset); pen.lineTo(x + wide - inset - corner, y + inset);
        pen.lineTo(x + wide - inset, y + inset + corner); pen.fill();
      }
      if (!letters && cell.shade) { pen.fillStyle = mix(colours.card, colours.muted, cell.shade); pen.fillRect(x, y, wide, high); }
      if (letters && cell.text) { pen.fillStyle = cell.ink; pen.fillText(cell.text, x + wide / 2, y + high / 2 + 0.5); }
    }
  }

  #draw() {
    if (!this.what) return;
    const pen = this.canvas.getContext("2d"), { columns, rows, wide, high } = this.size, colours = theme();
    const width = columns * wide, height = rows * high;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.drawImage(this.sheet, 0, 0);
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.globalAlpha = 0.72; pen.fillStyle = colours.card;
    pen.fillRect(LEFT, this.#y(this.current + 1), width, height - this.#y(this.current + 1));
    pen.globalAlpha = 1;
    this.#trainedColumn(pen, 0, height);
    this.#labels(pen);
    this.#numbers(pen);
    pen.strokeStyle = colours.ink; pen.lineWidth = 1.5;
    pen.strokeRect(LEFT - 1, this.#y(this.current) + 0.5, width + 2, high - 1);
    if (this.cursor) {
      pen.lineWidth = 2; pen.strokeStyle = colours.ink;
      pen.strokeRect(this.#x(this.cursor.position) - 0.5, this.#y(this.cursor.step) - 0.5, wide + 1, high + 1);
    }
  }

  #trainedColumn(pen, top, bottom) {
    const at = this.what.trainedColumn;
    if (!at || at >= this.size.columns) return;
    dotted(pen, theme().trained);
    line(pen, this.#x(at), top, this.#x(at), bottom);
    pen.setLineDash([]);
  }

  /** Lines below the named steps, their names to the right, pushed apart where they would touch. */
  #labels(pen) {
    const colours = theme(), { columns, wide, high } = this.size, end = LEFT + columns * wide;
    let lowest = 0;
    pen.font = `11px ${colours.sans}`; pen.textAlign = "left"; pen.textBaseline = "middle";
    for (const mark of this.what.marks().sort((a, b) => a.step - b.step)) {
      const y = this.#y(mark.step + 1), lines = mark.label.split("\n"), at = Math.max(y - high / 2, lowest + 7);
      if (mark.dotted) dotted(pen, colours.trained); else { pen.strokeStyle = colours.ink; pen.lineWidth = 1; }
      line(pen, LEFT, y - 0.5, end + 4, y - 0.5);
      line(pen, end + 4, y - 0.5, end + 10, at);
      pen.setLineDash([]);
      pen.fillStyle = mark.dotted ? colours.trained : colours.ink;
      lines.forEach((text, i) => pen.fillText(text, end + 13, at + 13 * i));
      lowest = at + 13 * lines.length - 6;
    }
  }

  #at(event) {
    if (!this.what) return null;
    const box = this.canvas.getBoundingClientRect();
    const position = Math.floor((event.clientX - box.left - LEFT) / this.size.wide);
    const step = Math.floor((event.clientY - box.top) / this.size.high);
    const inside = position >= 0 && position < this.size.columns && step >= 0 && step < this.size.rows;
    return inside ? { step, position } : null;
  }

  #pointed(event) {
    const at = this.#at(event);
    if (at?.step !== this.cursor?.step || at?.position !== this.cursor?.position) this.point(at);
  }

  #key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const move = moves[event.key];
    if (!move || !this.what) return;
    event.preventDefault(); event.stopPropagation();
    const { step, position } = this.cursor ?? { step: this.current, position: this.what.first };
    const next = {
      step: Math.min(this.size.rows - 1, Math.max(0, step + (this.cursor ? move[0] : 0))),
      position: Math.min(this.size.columns - 1, Math.max(0, position + (this.cursor ? move[1] : 0))),
    };
    if (next.step !== this.current) this.on.step(next.step);
    this.point(next);
  }
}

function dotted(pen, colour) { pen.setLineDash([2, 3]); pen.strokeStyle = colour; pen.lineWidth = 1.6; }

function line(pen, x1, y1, x2, y2) { pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x2, y2); pen.stroke(); }
