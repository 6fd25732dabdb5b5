// The heat map of one head at one step: row i shows where position i looks.

import * as api from "./api.js";
import { mix, theme } from "./colours.js";

const MARGIN = 18;
const MOST_KEPT = 200; // maps
const SLOW = 200; // milliseconds after which it is said that something is coming

export class Attention {
  /** `note(text)` says what is shown; `tip(i, j, share, x, y)` is called for the cell under the pointer, or with null. */
  constructor(canvas, note, tip) {
    Object.assign(this, { canvas, note, tip });
    this.kept = new Map(); this.waiting = null; this.shown = null;
    canvas.addEventListener("pointermove", (event) => this.#pointed(event));
    canvas.addEventListener("pointerleave", () => tip(null));
  }

  /** Shows what is wanted {model, question, step, layer, head} as soon as it is there; the latest wish counts. */
  show(wanted, names) {
    const key = JSON.stringify(wanted);
    if (this.wanted !== key) this.coming = this.#fetch(wanted, key, names);
    return this.coming;
  }

  async #fetch(wanted, key, names) {
    this.wanted = key;
    if (wanted.step < 1) return this.#say("before the first step nothing is looked at");
    if (!this.kept.has(key)) {
      this.waiting?.abort();
      this.waiting = new AbortController();
      const slow = setTimeout(() => { if (this.wanted === key) this.note(`step ${wanted.step}: computing …`); }, SLOW);
      try {
        this.kept.set(key, await api.attention(wanted, this.waiting.signal));
      } catch (error) {
        if (error.name !== "AbortError") { this.wanted = null; this.#say(error.message); }
        return;
      } finally {
        clearTimeout(slow);
      }
      if (this.kept.size > MOST_KEPT) this.kept.delete(this.kept.keys().next().value);
    }
    if (this.wanted !== key) return;
    this.shown = { ...this.kept.get(key), names };
    this.note(`step ${wanted.step}: a row looks at the columns before it`);
    this.paint();
  }

  /** Takes the last question's map away. */
  clear() { this.waiting?.abort(); this.wanted = null; this.#say(""); }

  #say(text) {
    this.shown = null;
    this.note(text);
    this.canvas.width = this.canvas.height = 0;
    this.canvas.style.width = this.canvas.style.height = "0";
  }

  paint() {
    if (!this.shown) return;
    const { size, shares, names } = this.shown, colours = theme(), room = this.canvas.parentElement.clientWidth - MARGIN - 2;
    this.cell = Math.max(2, Math.min(22, Math.floor(room / size)));
    const side = MARGIN + size * this.cell + 1, scale = side > 2000 ? 1 : Math.min(2, devicePixelRatio || 1), pen = this.canvas.getContext("2d");
    this.canvas.width = this.canvas.height = side * scale;
    this.canvas.style.width = this.canvas.style.height = `${side}px`;
    pen.scale(scale, scale);
    pen.fillStyle = mix(colours.card, colours.soft, 0.6);
    pen.fillRect(MARGIN, MARGIN, size * this.cell, size * this.cell);
    const inset = this.cell > 5 ? 0.5 : 0;
    for (let i = 0; i < size; i++) {
      for (let j = 0; j <= i; j++) {
        const share = shares[i * size + j] / 255;
        pen.fillStyle = mix(colours.card, colours.right, Math.sqrt(share));
        pen.fillRect(MARGIN + j * this.cell + inset, MARGIN + i * this.cell + inset, this.cell - 2 * inset, this.cell - 2 * inset);
      }
    }
    if (this.cell < 8) return;
    pen.fillStyle = colours.muted; pen.textAlign = "center"; pen.textBaseline = "middle";
    pen.font = `${Math.min(12, this.cell - 1)}px ${colours.mono}`;
    names.forEach((name, i) => { // the last argument narrows a name of several signs to its cell
      const at = MARGIN + (i + 0.5) * this.cell;
      pen.fillText(name, at, MARGIN / 2, this.cell - 3);
      pen.fillText(name, MARGIN / 2, at, MARGIN - 3);
    });
  }

  #pointed(event) {
    if (!this.shown) return;
    const box = this.canvas.getBoundingClientRect(), { size, shares } = this.shown;
    const [j, i] = [event.clientX - box.left, event.clientY - box.top].map((at) => Math.floor((at - MARGIN) / this.cell));
    if (j < 0 || i < 0 || i >= size || j > i) return this.tip(null);
    this.tip(i, j, shares[i * size + j] / 255, event.clientX, event.clientY);
  }
}
