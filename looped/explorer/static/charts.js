// Lines over steps and over lengths, drawn with Observable Plot.

import { theme } from "./colours.js";
import { term } from "./terms.js";

const MEASURES = [ // name, term, words, unit, domain
  ["confidence", "confidence_measure", "confidence", "", [0, 1]],
  ["entropy", "entropy", "entropy", "in bits per position", null],
  ["change", "change", "change of the state", "relative to its size", null],
];
// Told apart by colour and by dash, so that either is enough: [on light, on dark, dash].
const RULES = {
  oracle: ["#0072b2", "#5bb5ea", null], confidence: ["#d55e00", "#f2893f", "6,3"], "confidence-batch": ["#6b4a2b", "#d8b894", "3,1"], threshold: ["#00785a", "#3dc7a0", "2,3"],
  converged: ["#a3457c", "#e39fc6", "8,3,2,3"], settled: ["#3f51a3", "#9fb0f5", "5,2,1,2"], halt: ["#8a6a00", "#d9b13a", "1,2"], "halt-mode": ["#5d6975", "#98a5b2", "4,2"],
};
const dark = () => document.documentElement.dataset.theme === "dark";
const family = (stop) => RULES[stop.split("=")[0]];

/** Confidence, entropy and change after every step, the rules' choices and the present step drawn in. */
export function measures(box, run, step) {
  const colours = theme(), width = box.clientWidth || 320, last = run.start.steps;
  const chosen = [...new Set((run.rules ?? []).filter((rule) => rule.stopped).map((rule) => rule.step))];
  if (!box.children.length) box.append(...MEASURES.map(captioned));
  const figures = MEASURES.map(([name, , , , domain], i) => Plot.plot({
    className: "plot", width, height: i === 2 ? 104 : 86, marginLeft: 40, marginRight: 12, marginTop: 8, marginBottom: i === 2 ? 34 : 16,
    style: { fontSize: "11px" },
    x: { domain: [0, last], label: i === 2 ? "step" : null, ticks: i === 2 ? 6 : [], tickFormat: "d" },
    y: { domain: domain ?? [0, Math.max(0.05, d3.max(run.steps, (at) => at[name]) ?? 0)], nice: !domain, label: null, ticks: 3, grid: true },
    marks: [
      Plot.ruleX(chosen, { stroke: colours.muted, strokeOpacity: 0.75 }),
      Plot.ruleX([step], { stroke: colours.ink, strokeWidth: 1.5 }),
      Plot.line(run.steps, { x: "step", y: name, stroke: colours.right, strokeWidth: 1.8 }),
      Plot.dot(run.steps.filter((at) => at.step === step), { x: "step", y: name, r: 4, fill: (at) => (at.correct ? colours.right : at.step < run.stop ? colours.muted : colours.wrong), stroke: colours.card }),
    ],
  }));
  figures.forEach((figure, i) => {
    label(figure, `${MEASURES[i][2]} over ${run.steps.length} steps`);
    box.children[i].lastChild.replaceChildren(figure);
  });
}

/** A place for a chart under its name, which explains itself. */
function captioned([, name, words, unit]) {
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  caption.append(term(name, words), unit);
  figure.append(caption, document.createElement("div"));
  return figure;
}

/** Accuracy by length, the training length and the question's length drawn in. */
export function accuracy(box, model, length) {
  const colours = theme(), width = box.clientWidth || 320, rows = model.rows;
  if (!rows.length) return box.replaceChildren();
  const stops = [...new Set(rows.map((row) => row.stop))];
  const colour = (stop) => family(stop)?.[dark() ? 1 : 0] ?? colours.muted;
  const far = Math.max(length, model.trained ?? 0, d3.max(rows, (row) => row.length));
  const lines = [...stops].reverse().map((stop) => Plot.line(rows.filter((row) => row.stop === stop), {
    x: "length", y: "accuracy", stroke: colour(stop), strokeWidth: 1.8, strokeDasharray: family(stop)?.[2], marker: "circle", sort: "length",
  }));
  const notes = [[length, "this question"], ...(model.trained ? [[model.trained, "trained to"]] : [])];
  const figure = Plot.plot({
    className: "plot", width, height: 260, marginLeft: 40, marginRight: 14, marginTop: 34, marginBottom: 36, style: { fontSize: "11px" },
    x: { domain: [0, far * 1.04], label: "length", labelArrow: "none" },
    y: { domain: [0, 1], label: null, grid: true, ticks: 5 },
    marks: [
      Plot.ruleX([model.trained].filter(Boolean), { stroke: colours.trained, strokeDasharray: "2,3", strokeWidth: 1.6 }),
      Plot.ruleX([length], { stroke: colours.ink, strokeWidth: 1.5 }),
      ...lines,
      Plot.text(notes, { x: "0", y: 1, text: (at) => at[1], dy: (model.trained && Math.abs(length - model.trained) < far / 4) ? -22 : -10, filter: (at) => at[1] !== "trained to", fill: colours.ink, textAnchor: length > far * 0.7 ? "end" : "start" }),
      Plot.text(notes, { x: "0", y: 1, text: (at) => at[1], dy: -10, filter: (at) => at[1] === "trained to", fill: colours.trained, textAnchor: "start" }),
    ],
  });
  label(figure, `Accuracy by length; the question has length ${length}`);
  box.replaceChildren(figure, key(stops, colour));
}

function label(figure, text) {
  figure.setAttribute("role", "img");
  figure.setAttribute("aria-label", text);
}

function key(stops, colour) {
  const box = document.createElement("p");
  box.className = "legend";
  for (const stop of stops) {
    const one = document.createElement("span"), swatch = document.createElement("span");
    swatch.textContent = "● ";
    swatch.style.color = colour(stop);
    one.append(swatch, term(stop));
    box.append(one);
  }
  return box;
}
