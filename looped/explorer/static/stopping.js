// When a loop stops: halting heads after each step, and the rules over all steps. Says what looped/model/halting.py and
// looped/evaluation/stopping.py say, for one question.

const SPENT = 0.01; // adaptive computation time halts a position when less than this is left

/** Follows a row through the loop: `after(next, logits, wants)` gives what is read and what the next step starts from. */
export class Gate {
  constructor(kind, from) { Object.assign(this, { kind, from, halted: null, finished: false, log: 0 }); }

  after(next, logits, wants) {
    if (this.kind === "eoq") { // one place speaks, and from then on nothing changes
      this.halted = Number(wants[this.from] > 0);
      this.finished = this.halted > 0;
    } else if (this.kind === "ponder") {
      const mean = wants.subarray(this.from).reduce((sum, each) => sum + each, 0) / (wants.length - this.from);
      this.log -= Math.max(0, mean) + Math.log1p(Math.exp(-Math.abs(mean)));
      this.halted = -Math.expm1(this.log);
    } else if (this.kind === "act") return this.#act(next, logits, wants);
    return { state: next, seen: next, logits };
  }

  /** Every position spends a probability of 1; scores are linear in the state, so both are mixed alike. */
  #act(next, logits, wants) {
    const size = wants.length, parts = [next, logits];
    this.used ??= new Float32Array(size);
    this.running ??= new Uint8Array(size).fill(1);
    this.last ??= parts.map((part) => part.slice());
    this.sum ??= parts.map((part) => new Float32Array(part.length));
    const read = this.sum.map((part) => part.slice());
    for (let i = 0; i < size; i++) {
      const before = this.running[i], p = 1 / (1 + Math.exp(-wants[i])), ends = this.used[i] + p >= 1 - SPENT;
      const weight = !before ? 0 : ends ? 1 - this.used[i] : p;
      this.used[i] += weight;
      this.running[i] = Number(before && !ends);
      const rest = this.running[i] ? 1 - this.used[i] : 0;
      parts.forEach((part, k) => {
        const wide = part.length / size;
        for (let j = i * wide; j < (i + 1) * wide; j++) {
          if (before) this.last[k][j] = part[j];
          this.sum[k][j] += weight * part[j];
          read[k][j] = this.sum[k][j] + rest * this.last[k][j];
        }
      });
    }
    this.halted = Number(this.running.subarray(this.from).every((each) => !each));
    return { state: this.last[0].slice(), seen: read[0], logits: read[1] };
  }
}

/** The step (from 1) at which a rule stops, by what each step was like; null where it never does. */
export function chosen(rule, steps, needed, limits) {
  const first = (stops) => { const at = steps.findIndex(stops); return at < 0 ? null : at + 1; };
  const highest = (value) => steps.reduce((best, _, t) => (value(t) > value(best) ? t : best), 0) + 1;
  let stood = 0;
  return {
    oracle: () => needed,
    confidence: () => highest((t) => -steps[t].surprise),
    threshold: () => first((at) => at.surprise < limits.threshold),
    converged: () => first((at) => { stood = at.rewritten ? 0 : stood + 1; return stood >= limits.patience; }),
    settled: () => first((at) => at.motion < limits.motion),
    halt: () => first((at) => at.done ?? at.halted >= limits.halted),
    "halt-mode": () => highest((t) => steps[t].halted - (steps[t - 1]?.halted ?? 0)),
  }[rule]();
}

/** Whether a rule applies: some ask the model, and not every model says something. */
export function applies(rule, model) {
  if (!model.adaptive) return rule === "oracle";
  if (rule === "halt-mode") return model.halting !== "none";
  return rule !== "halt" || model.halting !== "none" || model.halt !== null;
}
