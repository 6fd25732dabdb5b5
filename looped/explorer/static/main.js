// The page: brings the form, the loop and the figures together. A question that is asked replaces the one before.

import * as api from "./api.js";
import * as charts from "./charts.js";
import * as state from "./state.js";
import * as tip from "./tip.js";
import * as verdict from "./verdict.js";
import { Attention } from "./attention.js";
import { Controls } from "./controls.js";
import { Player } from "./player.js";
import { Stage } from "./stage.js";
import { Tour, calm } from "./tour.js";
import { Refused, said } from "./messages.js";
import { explainAll } from "./terms.js";

const $ = (id) => document.getElementById(id);
const SLOW = 250; // milliseconds after which progress is shown

let run = null; // {start, steps, rules, seconds}
let asking = null; // the AbortController of the question being asked
let shown = {}; // what the address holds besides the form
let frame = 0, later = 0;

const stage = new Stage((step) => { player.pause(); player.go(step); });
const player = new Player({ slider: $("step"), button: $("play"), back: $("back"), on: $("on"), speed: $("speed"), shown: $("step-shown") }, () => draw());
const attention = new Attention($("attention"), (text) => { $("attention-note").textContent = text; }, (i, j, share, x, y) => {
  if (i === null) return tip.hide();
  const { names, row } = run.start;
  tip.show(`Position ${i + 1} (${names[row[i]]}) looks at ${j + 1} (${names[row[j]]})`, [{ name: names[row[j]], share, right: true }], x, y);
});
const controls = new Controls(await api.catalogue(), { ask: () => { tour.own = true; ask(); }, draw: () => drawQuestion(), model: () => drawQuestion() });
const tour = new Tour(controls.catalogue, {
  show: async (wanted) => { await show(wanted); await run?.tracing; if (run?.rules) await look(); return run; },
  play: (step) => { if (!calm()) { player.go(0); player.play(step); } },
  left: () => { player.pause(); if (run?.rules) remember(); },
});
explainAll(document);
document.body.classList.toggle("alone", !api.program);
$("version").textContent = `looped ${controls.catalogue.version}, ${api.WHERE}`;

// --- asking --------------------------------------------------------------------------------------------------
async function ask(at = {}) {
  asking?.abort();
  const mine = asking = new AbortController(), { model, question } = controls;
  const wanted = { model: model.key, question: question.trim(), stretch: controls.stretch };
  player.pause();
  controls.say("");
  $("bar").value = 0;
  $("progress-text").textContent = "loading …";
  const slow = setTimeout(() => { $("progress").hidden = false; }, SLOW);
  try {
    await api.run(wanted, (message) => { if (mine === asking) take(message, model, at); }, mine.signal);
  } catch (error) {
    if (mine === asking) failed(error);
  } finally {
    clearTimeout(slow);
    if (mine === asking) {
      $("progress").hidden = true;
      asking = null;
      if (document.body.dataset.state !== "settled") document.body.dataset.state = "idle"; // a stream may end late
    }
  }
}

function take(message, model, at) {
  if (message.kind === "start") begin(message, model);
  else if (message.kind === "step") {
    run.steps.push(message);
    $("bar").value = message.step / run.start.steps;
    $("progress-text").textContent = `step ${message.step} of ${run.start.steps}`;
    if (message.step === run.start.needed && model.rule === "oracle") verdict.answer(run, model);
    follow();
  } else finish(message, model, at);
}

function begin(start, model) {
  document.body.dataset.state = "running";
  run = { start, steps: [], rules: null, model, stop: start.needed, traced: null };
  verdict.task(controls.catalogue.tasks.find((each) => each.name === model.task));
  for (const id of ["stage", "panels"]) $(id).hidden = false;
  $("result").hidden = true;
  controls.showLength(start.length);
  player.setLast(start.steps);
  stage.begin(run, model);
  attention.clear();
  verdict.rules(run, () => {});
  verdict.record(model, start.length);
  charts.accuracy($("accuracy"), model, start.length);
  if (api.program) run.tracing = trace(run, model);
}

function finish(end, model, at) {
  Object.assign(run, { rules: end.rules, seconds: end.seconds });
  run.stop = verdict.answer(run, model);
  if (run.stop !== run.start.needed) stage.stopped();
  verdict.rules(run, (chosen) => { player.pause(); player.go(chosen); });
  player.go(at.step ?? run.stop);
}

function failed(error) {
  if (error.name === "AbortError") controls.say(run ? `Cancelled after ${run.steps.length} of ${run.start.steps} steps.` : "Cancelled.", true);
  else controls.say(error instanceof Refused ? sentence(error.message) : api.SILENT);
}

async function trace(mine, model) {
  try {
    const program = await api.program(model.key, mine.start.question);
    mine.traced = program.steps;
    const network = controls.catalogue.models.find((each) => each.key === `${model.task}-compiled`);
    if (network && network !== model) program.variables.push(compiled(network, mine, program.steps));
    if (run === mine) await stage.trace(program, shown.show, (name) => { shown.show = name; remember(); });
  } catch (error) {
    if (run === mine) $("program-note").textContent = error.message;
  }
}

/** The program as a network, beside the trained one: run when a person wants to see it. */
function compiled(network, mine, steps) {
  const wanted = { model: network.key, question: mine.start.question, stretch: controls.catalogue.stretch };
  const variable = { name: "compiled", note: "compiled into a network: what it says", tokens: true, answers: true };
  variable.load = async () => Object.assign(variable, await said(api.run, wanted, steps));
  return variable;
}

/** A new question; where a person has asked for another one meanwhile, that one counts, whichever comes first. */
async function drawQuestion() {
  const wish = drawQuestion.wish = (drawQuestion.wish ?? 0) + 1;
  tour.own = true;
  const late = () => wish !== drawQuestion.wish;
  try {
    const seed = Math.floor(Math.random() * 2 ** 40);
    const { question } = await api.draw({ model: controls.model.key, ...controls.drawn, seed });
    if (late()) return undefined;
    controls.question = question;
  } catch (error) {
    return late() ? undefined : failed(error);
  }
  return ask();
}

// --- drawing -------------------------------------------------------------------------------------------------
/** The last step computed so far, while the loop runs; no more often than the screen is drawn. */
function follow() {
  frame ||= requestAnimationFrame(() => { frame = 0; if (run && !run.rules && !calm()) player.go(run.steps.length); });
}

function draw() {
  if (!run) return;
  stage.go(player.step);
  verdict.now(run, player.step);
  cancelAnimationFrame(draw.frame);
  draw.frame = requestAnimationFrame(() => { charts.measures($("measures"), run, player.step); look(); });
  if (run.rules) remember();
}

function look() {
  const { start, model } = run, wanted = { model: model.key, question: start.question, step: player.step, layer: Number($("layer").value), head: Number($("head").value) };
  return run.rules ? attention.show(wanted, start.row.map((id) => start.names[id])) : undefined;
}

/** Puts what is seen into the address, once things have settled. */
function remember() {
  clearTimeout(later);
  later = setTimeout(() => {
    state.write(tour.address ?? { task: run.model.task, model: run.model.key, q: run.start.question, step: player.step, layer: $("layer").value, head: $("head").value, show: shown.show, for: controls.stretch });
    document.body.dataset.state = "settled";
  }, 150);
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

// --- the rest of the page ------------------------------------------------------------------------------------
for (const id of ["layer", "head"]) $(id).addEventListener("change", () => { if (run) { look(); remember(); } });
$("cancel").addEventListener("click", () => asking?.abort());
addEventListener("keydown", (event) => { if (event.key === "Escape") { asking?.abort(); tip.hide(); } });
addEventListener("themechange", () => { if (run) { draw(); attention.paint(); charts.accuracy($("accuracy"), run.model, run.start.length); } });
try { $("what").open = localStorage.getItem("looped-what") !== "closed"; } catch { /* a private window */ }
$("what").addEventListener("toggle", () => { try { localStorage.setItem("looped-what", $("what").open ? "open" : "closed"); } catch { /* the same */ } });
let width = innerWidth;
addEventListener("resize", () => {
  if (!run || innerWidth === width) return; // a phone's address bar comes and goes
  width = innerWidth;
  stage.resize(); draw(); attention.paint(); charts.accuracy($("accuracy"), run.model, run.start.length);
});
addEventListener("hashchange", () => open(state.read()));
addEventListener("pointerdown", (event) => { if (event.target.localName !== "canvas") tip.hide(); });
$("share").addEventListener("click", async () => {
  await navigator.clipboard?.writeText(location.href).catch(() => {});
  $("share").textContent = "Copied";
  setTimeout(() => { $("share").textContent = "Copy link"; }, 1500);
});

/** Shows what an address asks for: a stop of the tour, or a question. */
function open(wanted) { return tour.has(wanted.tour) ? tour.go(wanted.tour) : show(wanted); }

/** Shows a question; without one, always the same, neither short nor long. */
async function show(wanted) {
  const { missing } = controls.choose(wanted);
  shown = { show: wanted.show };
  if (wanted.layer < controls.model.layers) $("layer").value = String(wanted.layer);
  if (wanted.head < controls.model.heads) $("head").value = String(wanted.head);
  if (wanted.q === undefined) {
    const { question } = await api.draw({ model: controls.model.key, length: Math.min(10, controls.model.longest), seed: 1 });
    controls.question = question;
  }
  const told = missing ? () => controls.say("The model of that address is not here; another one answers.", true) : () => {};
  return ask({ step: wanted.step }).then(told);
}

await open(state.read());
