// What a cell of the network's and of the program's grid looks like.

import { inkOn, mix, theme } from "./colours.js";

const FULL = 65535;

/** How the network's grid shows a run; `run` is the record that `main.js` fills. */
export function networkView(run, model) {
  const { start } = run, { names, row, target, from } = start, columns = row.length;
  return {
    zero: "in", first: from,
    head: heads(start),
    known: () => run.steps.length + 1,
    trainedColumn: model.trained_row,
    marks: () => marks(run, model),
    cell(step, p) {
      const colours = theme();
      if (step === 0) return { text: names[row[p]], ink: colours.muted, shade: shade(row[p], names) };
      const { tokens, shares } = run.steps[step - 1], token = tokens[p];
      return answerCell({ token, names, share: shares[p] / FULL, wanted: target[p], counts: p >= from, early: step < run.stop });
    },
    columns,
  };
}

/** How the program's grid shows one of its variables. */
export function programView(run, program, variable) {
  const { start } = run, { target, from, names } = start, eos = names.indexOf("#");
  return {
    zero: "prep", first: from,
    head: heads(start),
    known: () => program.steps + 1,
    trainedColumn: null,
    marks: () => [{ step: program.steps, label: `done` }],
    cell(step, p) {
      const colours = theme(), value = variable.values[step * variable.columns + p];
      if (p >= variable.columns || value === -1) return null;
      const text = variable.tokens ? names[value] ?? "○" : String(value);
      if (variable.answers) return answerCell({ token: value, names, share: 1, wanted: target[p], counts: p >= from, early: step < program.steps });
      if (variable.tokens && value === eos) return { text, ink: colours.muted };
      const fill = mix(colours.card, colours.muted, value === 0 ? 0.12 : 0.42);
      return { text, fill, ink: inkOn(fill) };
    },
  };
}

/**
 * A position that is read out: right, not yet right while the loop is `early` (before it stops), or wrong.
 * The colour is the paler the less sure the model is (`share`).
 */
export function answerCell({ token, names, share, wanted, counts, early }) {
  const text = names[token] ?? "○", colours = theme();
  if (!counts) return { text, ink: colours.muted, shade: 0.5 * shade(token, names) };
  const sure = Math.max(0, share - 0.2) / 0.8, good = token === wanted;
  if (good && text === "#") return { text, fill: mix(colours.card, colours.right, 0.06), ink: colours.muted };
  if (!good && early) return { text, fill: mix(colours.card, colours.muted, 0.03 + 0.09 * sure * sure), ink: colours.muted };
  const fill = mix(colours.card, good ? colours.right : colours.wrong, 0.12 + 0.88 * sure * sure);
  return { text, fill, ink: inkOn(fill), wrong: !good };
}

/** How dark a symbol is where it is too small to be written: none for `#`, the darker the higher among its task's. */
function shade(token, names) {
  const symbols = names.indexOf(">");
  return token > symbols || token < 0 ? 0 : token === symbols ? 0.9 : 0.12 + (0.55 * token) / Math.max(1, symbols - 1);
}

/** The question as it is fed in, and what is wanted, above a grid. */
function heads({ names, row, target, from }) {
  return [
    { label: "row", text: (p) => names[row[p]], faint: (p) => p > from, shade: (p) => shade(row[p], names) },
    { label: "want", text: (p) => (p < from ? "" : names[target[p]]), faint: (p) => names[target[p]] === "#", shade: (p) => (p < from ? 0 : shade(target[p], names)) },
  ];
}

/** The steps at which rules stop, those of one step together, and the longest that was trained. */
function marks(run, model) {
  const at = new Map();
  for (const rule of run.rules ?? []) {
    if (rule.stopped) at.set(rule.step, [...(at.get(rule.step) ?? []), rule.name]);
  }
  const found = [...at].map(([step, names]) => ({ step, label: names.join("\n") }));
  if (model.trained_steps && model.trained_steps < run.start.steps && model.adaptive) {
    found.push({ step: model.trained_steps, label: `trained to ${model.trained}`, dotted: true });
  }
  return found;
}

/** The probabilities of a cell, likeliest first: [{name, share, right}]; null for the input's own row. */
export function probabilities(run, step, p) {
  if (step === 0 || step > run.steps.length) return null;
  const { names, row, target, from } = run.start, { tokens, shares } = run.steps[step - 1], columns = row.length;
  const found = [];
  for (let k = 0; k * columns < tokens.length; k++) {
    const token = tokens[k * columns + p];
    found.push({ name: names[token], share: shares[k * columns + p] / FULL, right: p >= from && token === target[p] });
  }
  const rest = 1 - found.reduce((sum, { share }) => sum + share, 0);
  if (names.length > found.length) found.push({ name: "else", share: Math.max(0, rest), right: false });
  return found;
}
