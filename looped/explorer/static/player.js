// The present step: a slider, a button that plays, and keys. Tells whoever listens; knows nothing of what is shown.

const WHOLE = 6000; // milliseconds for all steps, if that is neither too fast nor too slow

export class Player {
  constructor(slider, button, shown, onStep) {
    Object.assign(this, { slider, button, shown, onStep });
    this.step = 0; this.last = 0; this.timer = null;
    slider.addEventListener("input", () => { this.pause(); this.go(Number(slider.value)); });
    button.addEventListener("click", () => this.toggle());
    addEventListener("keydown", (event) => this.#key(event));
  }

  /** A loop of so many steps; stays at the present step if there is one. */
  setLast(last) {
    this.last = last;
    this.slider.max = String(last);
  }

  go(step) {
    this.step = Math.min(this.last, Math.max(0, Math.round(step)));
    this.slider.value = String(this.step);
    this.shown.textContent = `step ${this.step} of ${this.last}`;
    this.onStep(this.step);
  }

  toggle() { if (this.timer) this.pause(); else this.play(); }

  play() {
    if (this.step >= this.last) this.go(0);
    this.#label(true);
    const wait = Math.min(450, Math.max(40, WHOLE / this.last));
    this.timer = setInterval(() => {
      this.go(this.step + 1);
      if (this.step >= this.last) this.pause();
    }, wait);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.#label(false);
  }

  #label(playing) {
    this.button.textContent = playing ? "Pause" : "Play";
    this.button.setAttribute("aria-pressed", String(playing));
  }

  /** Keys that work wherever nothing else takes them. */
  #key(event) {
    if (!this.last || event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.("input, select, button, textarea, canvas")) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === " ") this.toggle();
    else if (steps !== undefined) { this.pause(); this.go(Math.min(this.last, Math.max(0, this.step + steps))); }
    else return;
    event.preventDefault();
  }
}
