// What every word on the page means. A word with an explanation is a button: click, tap, Enter or pointing shows it.

const OPEN_AFTER = 250, CLOSE_AFTER = 250; // milliseconds of pointing, and of having pointed

/** name: [title, explanation]. Stopping rules have their own names; the table of rules and the charts link to them. */
const TERMS = {
  task: ["Task", "The kind of question: what is given and what is to be answered. Every model here was made for one task."],
  model: ["Model", "The network that answers. The first in the list is the one that looped.load gives for the task; long, fast, paper, quick and chomsky are recipes of training. A compiled one was not trained: its weights were written from the program."],
  question: ["Question", "What the network is asked, as you would type it for looped solve. Enter asks it."],
  inputs: ["Inputs", "How a question is drawn. Random draws every symbol evenly. The other choices are special cases that can be harder: all zeros, all ones, the longest carry of an addition, and so on."],
  length: ["Length", "How long the question is, in the task's own measure n: bits, or digits of each number. The dotted line is the longest length of the training."],
  stretch: ["Run for", "How many steps are computed, as a multiple of those after which the answer is due. Running on shows whether the network holds it."],
  steps: ["T(n)", "The number of steps that a question of length n gets: as many as a program needs that repeats one step. Some models here were trained with another number, for example one step for every symbol of the question; then the answer is due after that many."],
  loop: ["Loop", "The network is one block of a few layers. Its output is fed back into the same block, again and again, so a longer question can simply get more steps."],
  step: ["Step", "One pass through the block. Row 3 of the grid is what would be read if the loop ended after step 3."],
  position: ["Position", "One place of the text that the network reads and writes. All positions are computed at the same time."],
  rows: ["Row and want", "Row is what the network is fed: the question, the sign >, and room for the answer. Want is the correct answer, which the network does not see. The sign # stands for nothing: there the answer is over. In and prep are what there is before the first step."],
  mark: ["The sign >", "The end of the question. The answer begins in this column; what stands to the left of it is not part of the answer."],
  right: ["Right", "The symbol that would be read here is the one of the correct answer."],
  early: ["Not yet", "The loop is still running, and this symbol is not the one of the answer yet. That is no mistake: a correct program looks like this before it is done."],
  wrong: ["Wrong", "The loop has stopped, at this step or before, and this symbol is not the one of the correct answer."],
  sure: ["Paler: less sure", "The network gives every symbol a probability. The paler a cell, the lower the probability of the symbol shown."],
  trained: ["Training length", "In training the network met no longer question than this, no longer row of positions and no longer loop. What is beyond is new to it."],
  rule: ["Stopping rule", "A rule that decides after which step the loop stops and the answer is read. The line shows where; the names stand beside it."],
  program: ["The program", "The same task solved by a program in the language n-RASP-L, which has only operations that a Transformer can do and repeats one step. It is written by hand, and it is always right when it is done."],
  variables: ["Variables", "What the program computes with. Output is what would be answered if the program were read out at that step; compiled is the same program as a network whose weights a compiler has written."],
  confidence_measure: ["Confidence", "How sure the network is of the whole answer that it would give now: 1 is no doubt. It is computed from the mean cross entropy with its own answer."],
  entropy: ["Entropy", "How evenly the probability is spread over the symbols, as a mean over the positions of the answer, in bits. 0 means that one symbol has it all."],
  change: ["Change of the state", "How far this step has moved the numbers inside the network, relative to their size. 0 means that nothing moves any more."],
  attention: ["Attention", "How a position collects what it needs from others. Row i shows where position i looks in this step; darker is more. No position looks ahead."],
  layer: ["Layer", "The block is made of a few layers, one after another. Each has its own attention."],
  head: ["Head", "Each layer looks in several ways at once; each way is a head. Some heads see every earlier position, some only the last few."],
  accuracy: ["Accuracy", "The share of fresh random questions of one length that are answered completely right, every symbol of the answer."],
  oracle: ["oracle", "Is told after how many steps the answer is due, and stops there. It uses knowledge that the network does not have."],
  confidence: ["confidence", "Runs to the end, then goes back to the step at which the network was surest of its answer."],
  "confidence-batch": ["confidence-batch", "As confidence, but one step for many questions of one length: the one at which they are surest on average."],
  threshold: ["threshold", "Stops at the first step at which the network is sure enough of its answer."],
  converged: ["converged", "Stops when the answer has stayed the same for three steps."],
  settled: ["settled", "Stops when a step hardly moves the numbers inside the network any more."],
  halt: ["halt", "The network itself says that it is done: an output of its own, trained or compiled for this."],
  "halt-mode": ["halt-mode", "Runs to the end, then takes the step at which the network's own halting output most probably stops."],
};

const box = () => document.getElementById("explain");
let owner = null, pinned = false, timer = 0;

/** A word that explains itself. A rule's name may carry a parameter: `threshold=0.1`. */
export function term(name, text) {
  const key = name.split("=")[0], button = document.createElement("button");
  button.type = "button";
  button.className = "term";
  button.textContent = text ?? name;
  if (TERMS[key]) explains(button, key);
  else button.disabled = true; // a rule of the user's own
  return button;
}

/** Gives every element with `data-term` its explanation: a label gets a button beside it, other words become one. */
export function explainAll(root) {
  for (const element of root.querySelectorAll("[data-term]")) {
    const label = element.localName === "label", button = term(element.dataset.term, label ? "?" : element.textContent);
    if (label) {
      button.className = "why";
      button.setAttribute("aria-label", `What is this: ${element.textContent.trim()}?`);
      element.after(button);
    } else element.replaceChildren(button);
  }
}

function explains(button, key) {
  button.dataset.explains = key;
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    if (owner === button && pinned) close();
    else open(button, true);
  });
  button.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") later(() => { if (!pinned) open(button, false); }, OPEN_AFTER); });
  button.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") later(() => { if (!pinned) close(); }, CLOSE_AFTER); });
}

function open(button, pin) {
  clearTimeout(timer);
  if (owner !== button) close();
  const [title, text] = TERMS[button.dataset.explains], heading = document.createElement("h3"), body = document.createElement("p");
  heading.textContent = title; body.textContent = text;
  box().replaceChildren(heading, body);
  owner = button; pinned = pin;
  button.setAttribute("aria-expanded", "true");
  button.setAttribute("aria-describedby", "explain");
  box().hidden = false;
  place();
}

/** Below the word, or above it where there is no room. */
function place() {
  const at = owner.getBoundingClientRect(), { width, height } = box().getBoundingClientRect();
  const below = at.bottom + 6 + height < innerHeight;
  box().style.left = `${Math.max(6, Math.min(at.left, innerWidth - width - 6))}px`;
  box().style.top = `${below ? at.bottom + 6 : Math.max(6, at.top - height - 6)}px`;
}

function close() {
  clearTimeout(timer);
  owner?.setAttribute("aria-expanded", "false");
  owner?.removeAttribute("aria-describedby");
  owner = null; pinned = false;
  box().hidden = true;
}

function later(action, wait) { clearTimeout(timer); timer = setTimeout(action, wait); }

addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !owner) return;
  event.stopImmediatePropagation(); // the explanation alone, not the run
  close();
}, { capture: true });
addEventListener("pointerdown", (event) => { if (owner && !owner.contains(event.target) && !box().contains(event.target)) close(); });
for (const moved of ["scroll", "resize"]) addEventListener(moved, () => { if (owner) place(); }, { capture: true, passive: true });
box().addEventListener("pointerenter", () => clearTimeout(timer));
box().addEventListener("pointerleave", () => { if (!pinned) later(close, CLOSE_AFTER); });
