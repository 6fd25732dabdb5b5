// "Compute here": what server.js asks a server, computed in this page. One loop step is an ONNX file for onnxruntime-web;
// the loop around it, the stopping rules and the tasks are plain code.

import * as ort from "./vendor/ort.wasm.min.js";
import { Refused } from "./messages.js";
import { Gate, applies, chosen } from "./stopping.js";
import { TASKS, seeded } from "./tasks.js";

export const WHERE = "computed in this browser: nothing is sent anywhere";
export const SILENT = "A file of this site cannot be read: is its web server still there?";
export const program = null; // the n-RASP-L program has no interpreter here

const ROOT = new URL("../", import.meta.url);
const SLICE = 25; // milliseconds of computing, after which the page may draw
const KEPT = 2 ** 26; // numbers of a run's states that are kept for its attention maps
const FULL = 65535;
const NUMBERS = { float32: Float32Array, float64: Float64Array };
const INFINITE = "computes values that are no finite numbers: its run has diverged, train it again with a smaller lr";

let listed = null; // the catalogue
let kept = null; // the last run's states, with its model and question
const networks = new Map();

const file = async (path) => {
  const found = await fetch(new URL(path, ROOT));
  if (!found.ok) throw new Refused(`${path} is missing from this site (${found.status})`);
  return found;
};

export async function catalogue() {
  listed = await (await file("catalogue.json")).json();
  return listed;
}

export async function draw({ model: key, length, family = "uniform", seed = 0 }) {
  return { question: TASKS[find(key).task].draw(family, length, seeded(seed)) };
}

/** A question's way through the loop; `on` is called with every message as it comes. */
export async function run({ model: key, question, stretch }, on, signal) {
  const model = find(key), asked = read(model, question, stretch), network = await load(model);
  let seconds = 0, since = performance.now();
  on({ kind: "start", ...asked.start });
  const loop = new Loop(model, network, asked), seen = [], many = asked.steps * asked.row.length * model.width;
  kept = many <= KEPT ? { key, question: asked.start.question, states: loop.states } : null;
  for (let step = 1; step <= asked.steps; step++) {
    signal?.throwIfAborted();
    seen.push(await loop.advance());
    on({ kind: "step", step, ...seen.at(-1) });
    if (performance.now() - since > SLICE) {
      seconds += (performance.now() - since) / 1000;
      await new Promise((go) => setTimeout(go));
      since = performance.now();
    }
  }
  on({ kind: "end", rules: rules(model, seen, asked.needed), seconds: seconds + (performance.now() - since) / 1000 });
}

/** Attention as bytes, row by row: how much position i takes from position j, of 255. */
export async function attention({ model: key, question, step, layer, head }) {
  const model = find(key), network = await load(model), asked = read(model, question, 1), size = asked.row.length;
  if (!model.looks) throw new Refused("a block of the user's own has no attention maps to show");
  const loop = new Loop(model, network, asked);
  if (kept?.key === key && kept.question === asked.start.question && kept.states.length >= step - 1) loop.states = kept.states;
  while (loop.states.length < step - 1) await loop.advance();
  const heads = Object.entries(model.looks).flatMap(([kind, count]) => Array.from({ length: count }, (_, at) => ({ kind, at })));
  const { kind, at } = heads[head];
  const found = (await loop.pass(loop.states[step - 2], [`${kind}.${layer}`]))[`${kind}.${layer}`].data;
  const shares = new Uint8Array(size * size), count = model.looks[kind], few = found.length / size / count;
  const put = (i, j, share) => { shares[i * size + j] = Math.round(255 * share); };
  for (let i = 0; i < size; i++) {
    if (kind === "best") put(i, found[at * size + i], 1);
    if (kind === "wide") for (let j = 0; j <= i; j++) put(i, j, found[(at * size + i) * size + j]);
    if (kind === "narrow") { // those before it; the rest is its own
      const row = found.subarray((i * count + at) * few, (i * count + at + 1) * few);
      put(i, i, row.reduce((rest, share) => rest - share, 1));
      row.subarray(0, i).forEach((share, n) => put(i, i - n - 1, share));
    }
  }
  return { size, shares };
}

function find(key) {
  const model = listed.models.find((each) => each.key === key);
  if (!model) throw new Refused("there is no model of that name here");
  return model;
}

/** A typed question, laid out as the row that the model reads; refused in a sentence where it is none or too long. */
function read(model, text, stretch) {
  const task = listed.tasks.find((each) => each.name === model.task), own = TASKS[model.task], { limits } = listed;
  if (text.length > limits.text) throw new Refused(`the question has ${text.length} characters; at most ${limits.text} are read`);
  const { tokens, length, variant } = own.parse(task, text);
  if (length > model.longest) throw new Refused(`a question of length ${length} is too long to watch here: ${model.longest} is the most`);
  const needed = model.needed[variant][length - 1];
  if (needed > limits.steps) throw new Refused(`this question takes ${needed} steps, more than the ${limits.steps} that are run here`);
  const more = model.adaptive && stretch > 1 ? Math.min(limits.steps, Math.ceil(stretch * needed) + listed.spare) : needed;
  const { names } = task, id = (name) => names.indexOf(name), answer = own.solve(tokens), from = tokens.length + model.pause;
  const row = [...tokens.map(id), id(">"), ...Array(model.pause).fill(id("."))], target = Array(from).fill(id("#")).concat(answer.map(id));
  for (const each of [row, target]) while (each.length < task.rows[length - 1] + model.pause) each.push(id("#"));
  const say = (ids) => own.say(ids.slice(0, ids.indexOf(id("#")) < 0 ? ids.length : ids.indexOf(id("#"))).map((each) => names[each] ?? "?"));
  const steps = Math.max(more, needed), expected = own.say(answer);
  const start = { question: own.print(tokens), length, needed, steps, names, row, target, from, expected, meaning: own.meaning(expected) };
  return { start, row, target, from, needed, steps, say, meaning: own.meaning };
}

/** A model's two ONNX sessions, read when it is first asked. */
function load(model) {
  if (!networks.has(model.key)) {
    const coming = runtime().then(() => Promise.all(["embed", "step"].map(async (name) => {
      const data = await (await file(`${model.path}/${name}.onnx`)).arrayBuffer();
      return ort.InferenceSession.create(new Uint8Array(data), { executionProviders: ["wasm"] });
    }))).then(([embed, step]) => ({ embed, step }));
    networks.set(model.key, coming);
    coming.catch(() => networks.delete(model.key));
  }
  return networks.get(model.key);
}

function runtime() {
  runtime.coming ??= file("static/vendor/ort.wasm.bin").then(async (packed) => {
    const plain = packed.body.pipeThrough(new DecompressionStream("gzip"));
    Object.assign(ort.env.wasm, { numThreads: 1, wasmBinary: await new Response(plain).arrayBuffer() });
  });
  runtime.coming.catch(() => { runtime.coming = null; });
  return runtime.coming;
}

class Loop {
  constructor(model, network, asked) {
    Object.assign(this, { model, network, asked, states: [] }); // the state after step 1, 2, …
    this.gate = new Gate(model.halting, asked.from);
    this.shape = [1, asked.row.length, model.width];
    this.outputs = ["next", "logits", ...(model.halting === "none" ? [] : ["halt"])];
  }

  /** One pass of the block from a state, or from nothing: the named outputs. */
  async pass(state, outputs) {
    const { precision, injection } = this.model, tokens = BigInt64Array.from(this.asked.row, BigInt);
    this.input ??= (await this.network.embed.run({ tokens: new ort.Tensor("int64", tokens, this.shape.slice(0, 2)) })).input;
    const before = state ?? (injection ? new NUMBERS[precision](this.input.data.length) : this.input.data);
    return this.network.step.run({ state: new ort.Tensor(precision, before, this.shape), input: this.input }, outputs);
  }

  /** A step; what can be read after it. */
  async advance() {
    if (this.gate.finished) {
      this.states.push(this.states.at(-1));
      return this.last = { ...this.last, change: 0, motion: 0, rewritten: 0 };
    }
    const found = await this.pass(this.states.at(-1), this.outputs);
    const { state, seen, logits } = this.gate.after(found.next.data, found.logits.data, found.halt?.data);
    this.states.push(state);
    const read = this.#read(logits), moved = this.#moved(seen);
    this.before = seen;
    this.answer = read.answered;
    const { halt, width } = this.model, done = halt === null ? null : seen[seen.length - width + halt] > 0.5;
    return this.last = { ...read, ...moved, done, halted: this.gate.halted };
  }

  /** Tokens and their probabilities everywhere; surprise, entropy and the answer over what counts. */
  #read(logits) {
    const { row, target, from, say, meaning } = this.asked, size = row.length, many = logits.length / size, top = Math.min(listed.top, many);
    const tokens = new Uint16Array(top * size), shares = new Uint16Array(top * size), order = new Uint16Array(top);
    let surprise = 0, entropy = 0, correct = true, rewritten = 0;
    for (let p = 0; p < size; p++) {
      const scores = logits.subarray(p * many, (p + 1) * many);
      for (let k = 0, found = 0; k < many; k++) { // the likeliest few, in order
        let at = found;
        while (at > 0 && scores[order[at - 1]] < scores[k]) at--;
        if (at === top) continue;
        order.copyWithin(at + 1, at, Math.min(found, top - 1));
        order[at] = k;
        found = Math.min(top, found + 1);
      }
      let rest = 0, energy = 0;
      for (let k = 0; k < many; k++) {
        const below = scores[k] - scores[order[0]], share = Math.exp(below);
        if (k !== order[0]) rest += share;
        energy += share * below;
      }
      const total = Math.log1p(rest);
      for (let k = 0; k < top; k++) {
        tokens[k * size + p] = order[k];
        shares[k * size + p] = Math.round(FULL * Math.exp(scores[order[k]] - scores[order[0]] - total));
      }
      if (p < from) continue;
      surprise += total;
      entropy += total - energy / (1 + rest);
      correct &&= order[0] === target[p];
      rewritten += Number(order[0] !== this.answer?.[p - from]);
    }
    const counted = size - from, answered = tokens.slice(from, size), answer = say(Array.from(answered));
    surprise = Math.fround(surprise / counted);
    if (!Number.isFinite(surprise)) throw new Refused(`${this.model.label} ${INFINITE}`);
    return { tokens, shares, surprise, confidence: Math.exp(-surprise), entropy: entropy / counted / Math.LN2, correct, rewritten, answered, answer, meaning: meaning(answer) };
  }

  /** How far the state has moved: the answer's positions together (change), and the one that moves most (motion). */
  #moved(seen) {
    const { width } = this.model, { from } = this.asked;
    let motion = this.before ? 0 : Infinity, far = 0, large = 0;
    for (let p = 0; p * width < seen.length; p++) {
      let moved = 0, length = 0;
      for (let j = p * width; j < (p + 1) * width; j++) {
        moved += (seen[j] - (this.before?.[j] ?? 0)) ** 2;
        length += seen[j] ** 2;
      }
      motion = Math.max(motion, Math.sqrt(moved) / Math.max(1e-9, Math.sqrt(length)));
      if (p >= from) { far += moved; large += length; }
    }
    return { motion, change: Math.sqrt(far) / Math.max(1e-12, Math.sqrt(large)) };
  }
}

/** Where each stopping rule would have stopped; `stopped` is false where it never did in these steps. */
function rules(model, seen, needed) {
  return listed.rules.filter((name) => applies(name, model)).map((name) => {
    const step = chosen(name, seen, needed, listed), { answer, meaning, correct } = seen[(step ?? seen.length) - 1];
    return { name, step: step ?? seen.length, stopped: step !== null, answer, meaning, correct };
  });
}
