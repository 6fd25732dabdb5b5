// In words: the answer, what it rests on, and what each stopping rule would have answered.

import { percent } from "./tip.js";

const $ = (id) => document.getElementById(id);
const EMPTY = "(empty)";

/** The answer the model gives under its own rule; as soon as it is due where that rule is the oracle. */
export function answer(run, model) {
  const due = { name: "oracle", step: run.start.needed, ...run.steps[run.start.needed - 1] };
  const rule = run.rules?.find((each) => each.name === model.rule) ?? run.rules?.[0] ?? due;
  const at = run.steps[rule.step - 1];
  $("result").hidden = false;
  $("asked").textContent = shorten(run.start.question);
  $("answer").textContent = shorten(rule.answer || EMPTY);
  $("badge").textContent = rule.correct ? "✓ right" : `✗ wrong: it is ${shorten(run.start.expected || EMPTY, 32)}`;
  $("badge").className = `badge ${rule.correct ? "right" : "wrong"}`;
  const facts = [
    `after ${rule.step} ${rule.step === 1 ? "step" : "steps"} (${rule.name})`,
    `due at step ${run.start.needed}`,
    `confidence ${percent(at.confidence)}`,
    model.trained ? `length ${run.start.length}, trained up to ${model.trained}` : `length ${run.start.length}, never trained: compiled`,
    run.rules ? `${Math.round(1000 * run.seconds)} ms for ${run.steps.length} steps` : "looping on",
  ];
  $("about").textContent = facts.join(" · ");
  return rule.step;
}

/** What stands there after the present step, in a line. */
export function now(run, step) {
  const at = run.steps[step - 1], line = $("now");
  if (!at) return line.replaceChildren("the question as it is fed in");
  const mark = document.createElement("b");
  mark.className = at.correct ? "right" : "wrong";
  mark.textContent = at.correct ? " ✓ right" : " ✗ not yet the answer";
  if (!at.correct && step > run.start.needed) mark.textContent = " ✗ wrong";
  line.replaceChildren(`says ${at.answer || EMPTY}`, mark);
}

/** The table of rules; `go(step)` is called when one is chosen. */
export function rules(run, go) {
  const body = document.querySelector("#rules tbody");
  body.replaceChildren(...(run.rules ?? []).map((rule) => {
    const row = document.createElement("tr"), step = document.createElement("td"), said = document.createElement("td");
    const name = document.createElement("th"), button = document.createElement("button"), mark = document.createElement("span");
    name.scope = "row";
    name.textContent = rule.name;
    button.type = "button";
    button.textContent = rule.stopped ? rule.step : `never (${rule.step})`;
    button.setAttribute("aria-label", `go to step ${rule.step}, where ${rule.name} ${rule.stopped ? "stops" : "is still running"}`);
    button.addEventListener("click", () => go(rule.step));
    step.append(button);
    mark.className = rule.correct ? "right" : "wrong";
    mark.textContent = rule.correct ? "✓ " : "✗ ";
    said.className = "mono";
    said.title = rule.answer;
    said.append(mark, rule.answer || EMPTY);
    row.append(name, step, said);
    return row;
  }));
}

/** What is known of a model's accuracy, in words. */
export function record(model, length) {
  const told = model.rows.length
    ? `${model.source}. This question has length ${length}.`
    : model.trained === null
      ? "Compiled from the program, never trained: exact by construction wherever the row fits its table of positions."
      : "Not measured yet: looped evaluate measures a run.";
  $("accuracy-note").textContent = told[0].toUpperCase() + told.slice(1);
}

function shorten(text, most = 90) {
  return text.length <= most ? text : `${text.slice(0, most / 2 - 1)}…${text.slice(1 - most / 2)}`;
}
