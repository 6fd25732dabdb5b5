// In words: the answer, what it rests on, and what each stopping rule would have answered.

import { term } from "./terms.js";
import { percent } from "./tip.js";

const $ = (id) => document.getElementById(id);
const EMPTY = "(empty)";

/** What is asked, with a worked example. */
export function task({ name, summary, example, solved, meaning, formula }) {
  const bold = document.createElement("b"), asked = document.createElement("code"), answer = document.createElement("code");
  const words = name.replaceAll("_", " ");
  bold.textContent = words[0].toUpperCase() + words.slice(1);
  asked.textContent = example; answer.textContent = solved || EMPTY;
  $("what-task").replaceChildren(bold, `: ${summary}. For example, `, asked, " → ", answer, meaning && ` = ${meaning}`, ". A question of length n gets ", term("steps", "T(n)"), ` = ${formula} steps.`);
}

/** The answer the model gives under its own rule; as soon as it is due where that rule is the oracle. */
export function answer(run, model) {
  const due = { name: "oracle", step: run.start.needed, stopped: true, ...run.steps[run.start.needed - 1] };
  const rule = run.rules?.find((each) => each.name === model.rule) ?? run.rules?.[0] ?? due;
  $("result").hidden = false;
  $("asked").textContent = shorten(run.start.question);
  $("answer").textContent = shorten(rule.answer || EMPTY);
  $("meaning").textContent = rule.meaning && `= ${rule.meaning}`;
  $("badge").textContent = rule.correct ? "✓ right" : `✗ wrong: it is ${shorten(run.start.expected || EMPTY, 32)}${run.start.meaning && ` = ${run.start.meaning}`}`;
  $("badge").className = `badge ${rule.correct ? "right" : "wrong"}`;
  $("about").replaceChildren(...facts(run, model, rule));
  return rule.step;
}

/** Who answered, after how many steps, and which rule decided so. */
function facts(run, model, rule) {
  const { start } = run, steps = `${rule.step} ${rule.step === 1 ? "step" : "steps"}`;
  const told = [
    rule.stopped ? `, due at step ${start.needed}` : ", which had not stopped",
    ` · confidence ${percent(run.steps[rule.step - 1].confidence)}`,
    model.trained ? ` · length ${start.length}, trained up to ${model.trained}` : ` · length ${start.length}, never trained: compiled`,
    run.rules ? ` · ${Math.round(1000 * run.seconds)} ms for ${run.steps.length} steps` : " · looping on",
  ];
  return [`${model.label} answered after ${steps} by the rule `, term(rule.name), ...told];
}

/** What stands there after the present step, in a line. */
export function now(run, step) {
  const at = run.steps[step - 1], line = $("now");
  if (!at) return line.replaceChildren("the question as it is fed in");
  const mark = document.createElement("b"), kind = at.correct ? "right" : step < run.stop ? "early" : "wrong";
  mark.className = kind;
  mark.textContent = { right: " ✓ right", early: " … not yet", wrong: " ✗ wrong" }[kind];
  line.replaceChildren(`says ${at.answer || EMPTY}${at.meaning && ` = ${at.meaning}`}`, mark);
}

/** The table of rules; `go(step)` is called when one is chosen. */
export function rules(run, go) {
  const body = document.querySelector("#rules tbody");
  body.replaceChildren(...(run.rules ?? []).map((rule) => {
    const row = document.createElement("tr"), step = document.createElement("td"), said = document.createElement("td");
    const name = document.createElement("th"), button = document.createElement("button"), mark = document.createElement("span");
    name.scope = "row";
    name.append(term(rule.name));
    button.type = "button";
    button.textContent = rule.stopped ? rule.step : `never (${rule.step})`;
    button.setAttribute("aria-label", `go to step ${rule.step}, where ${rule.name} ${rule.stopped ? "stops" : "is still running"}`);
    button.addEventListener("click", () => go(rule.step));
    step.append(button);
    mark.className = rule.correct ? "right" : "wrong";
    mark.textContent = rule.correct ? "✓ " : "✗ ";
    said.className = "mono";
    said.title = rule.answer;
    said.append(mark, `${shorten(rule.answer || EMPTY, 18)}${rule.meaning && ` = ${rule.meaning}`}`);
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
