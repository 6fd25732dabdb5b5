// The present step: a slider, buttons, a speed, and keys. Tells its listeners; knows nothing of what is shown.

const WHOLE = 6000; // milliseconds for all steps, if that is neither too fast nor too slow

export class Player {
  constructor({ slider, button, back, on, speed, shown }, onStep) {
    Object.assign(this, { slider, button, speed, shown, onStep });
    this.step = 0; this.last = 0; this.timer = null;
    slider.addEventListener("input", () => { this.pause(); this.go(Number(slider.value)); });
    button.addEventListener("click", () => this.toggle());
    back.addEventListener("click", () => { this.pause(); this.go(this.step - 1); });
    on.addEventListener("click", () => { this.pause(); this.go(this.step + 1); });
    speed.addEventListener("change", () => { if (this.timer) this.play(this.until); });
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

  /** From the present step, or from the beginning if that is not before `until`. */
  play(until = this.last) {
    clearInterval(this.timer);
    this.until = until;
    if (this.step >= until) this.go(0);
    this.#label(true);
    const wait = Math.min(450, Math.max(40, WHOLE / this.last)) / Number(this.speed.value);
    this.timer = setInterval(() => {
      this.go(this.step + 1);
      if (this.step >= until) this.pause();
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
