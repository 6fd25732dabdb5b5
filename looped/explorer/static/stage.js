// The two grids side by side: one size, one step, one cursor, scrolled together.

import * as tip from "./tip.js";
import { networkView, probabilities, programView } from "./cells.js";
import { Grid, geometry } from "./grid.js";

const $ = (id) => document.getElementById(id);
const SMALL = 900; // pixels of a window in which the grids stand one above the other
const READABLE = 11; // pixels of a cell below which they do so in a wide one too
const LABELS = 108, FEW_LABELS = 86, FEWEST_LABELS = 44; // room for the rules' names

export class Stage {
  /** `onStep(step)` is called when a person chooses a step in a grid. */
  constructor(onStep) {
    const point = (step, p, x, y) => this.#point(step, p, x, y);
    this.network = new Grid($("network-head"), $("network"), { step: onStep, point });
    this.program = new Grid($("program-head"), $("program"), { step: onStep, point });
    this.#scrollTogether($("network-scroll"), $("program-scroll"));
    this.zoomed = null; // as chosen by a person; null: larger cells on a small screen
    $("zoom").addEventListener("click", () => { this.zoomed = !this.#zoom(); this.resize(); this.#toAnswer(); });
    addEventListener("themechange", () => { this.network.repaint(); this.program.repaint(); });
  }

  /** A new run: the network's grid at once, the program's when it is there. */
  begin(run, model) {
    this.run = run; this.model = model; this.traced = null; this.variable = null;
    this.#layout();
    this.#toAnswer();
    this.program.what = null;
    $("variables").replaceChildren();
    $("trained-key").hidden = !(model.trained && run.start.steps > model.trained_steps);
    $("network-note").textContent = `${model.label}: what each position says after each step`;
    $("program-note").textContent = "";
  }

  /** The program's run and the variable to begin with; a variable with `load` is fetched when it is first shown. */
  async trace(program, name, onVariable) {
    const variable = program.variables.find((each) => each.name === name) ?? program.variables[0];
    this.traced = program; this.variable = variable;
    $("program-note").textContent = variable.note ?? `n-RASP-L, done after ${program.steps} steps: its ${variable.name}`;
    $("variables").replaceChildren(...program.variables.map((each) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = each.name;
      button.setAttribute("aria-pressed", String(each === variable));
      button.addEventListener("click", () => { onVariable(each.name); this.trace(program, each.name, onVariable); });
      return button;
    }));
    try {
      if (!variable.values) await variable.load();
    } catch (error) {
      $("program-note").textContent = error.message;
    }
    if (this.variable !== variable || !variable.values) return; // another one was asked for meanwhile
    this.program.show(this.#programSize(), programView(this.run, program, variable));
    $("program-scroll").scrollLeft = $("network-scroll").scrollLeft;
    this.go(this.network.current);
  }

  /** Paints all again: the step at which the loop stops is known now. */
  stopped() {
    this.network.show(this.network.size, networkView(this.run, this.model));
  }

  /** Shows a step in both grids and keeps it in sight. */
  go(step) {
    this.network.paint(step);
    this.#inSight("network", step);
    if (!this.traced) return;
    this.program.paint(Math.min(step, this.traced.steps));
    if (this.#stacked) this.#inSight("program", Math.min(step, this.traced.steps));
  }

  get #stacked() { return $("pair").classList.contains("stacked"); }

  #inSight(name, step) {
    const box = $(`${name}-scroll`), { high } = this.network.size, top = step * high, bottom = top + high + $(`${name}-head`).offsetHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (bottom > box.scrollTop + box.clientHeight) box.scrollTop = bottom - box.clientHeight;
  }

  /** After a change of the window's size. */
  resize() {
    if (!this.run) return;
    const step = this.network.current;
    this.#layout();
    if (this.traced && this.variable.values) this.program.show(this.#programSize(), programView(this.run, this.traced, this.variable));
    this.go(step);
  }

  #layout() {
    const pair = $("pair"), small = innerWidth <= SMALL;
    pair.classList.remove("stacked");
    const letters = d3.max(this.run.start.names, (name) => name.length);
    if (small || this.#size(LABELS).wide < READABLE + 4 * (letters - 1)) pair.classList.add("stacked");
    const fitted = this.#size(small ? FEW_LABELS : LABELS);
    this.tiny = !fitted.letters;
    $("zoom").hidden = !this.tiny;
    $("zoom").textContent = this.#zoom() ? "Fit to width" : "Larger cells";
    $("zoom").setAttribute("aria-pressed", String(this.#zoom()));
    this.network.show(this.#zoom() ? this.#size(LABELS, true) : fitted, networkView(this.run, this.model));
  }

  /** Whether cells are drawn large enough for letters, in a grid that scrolls sideways. */
  #zoom() { return this.tiny && (this.zoomed ?? innerWidth <= SMALL); }

  /** Scrolls a grid that is wider than its frame to where the answer begins. */
  #toAnswer() { $("network-scroll").scrollLeft = this.#zoom() ? this.run.start.from * this.network.size.wide : 0; }

  #size(right, large = false) {
    const { start } = this.run, widest = d3.max(start.names, (name) => name.length);
    return geometry({ columns: start.row.length, rows: start.steps + 1, width: $("network-scroll").clientWidth, height: Math.min(0.6 * innerHeight, 640), right, widest, large });
  }

  /** The network's cells, and its rows too where the two stand side by side. */
  #programSize() {
    const { size } = this.network;
    return { ...size, right: this.#zoom() ? size.right : FEWEST_LABELS, rows: this.#stacked ? this.traced.steps + 1 : size.rows };
  }

  #point(step, p, x, y) {
    if (step === null || !this.run) return tip.hide();
    const { names, row, target, from } = this.run.start, lines = probabilities(this.run, step, p);
    if (!lines) return tip.hide();
    const wanted = p >= from ? `, wanted ${names[target[p]]}` : `, fed ${names[row[p]]}`;
    tip.show(`Step ${step}, position ${p + 1}${wanted}`, lines, x, y);
  }

  /** Sideways always; up and down where the two have the same rows. */
  #scrollTogether(a, b) {
    for (const [from, to] of [[a, b], [b, a]]) {
      from.addEventListener("scroll", () => {
        if (!this.#stacked && to.scrollTop !== from.scrollTop) to.scrollTop = from.scrollTop;
        if (to.scrollLeft !== from.scrollLeft) to.scrollLeft = from.scrollLeft;
      }, { passive: true });
    }
  }
}
