// A guided tour of up to four stops. A teacher can link to each: #tour=1 … #tour=4. Knows what to say; main.js shows it.

import * as api from "./api.js";

const $ = (id) => document.getElementById(id);
const LONG = ["1011001110001011010011100101100111010010", "0110100101110010101101001011010010111001"]; // 40 digits each

/** `models`: the first of them that is here answers. `seen(run, step)` says what happened, from what was computed. */
const STOPS = [
  {
    title: "A loop at work", models: ["addition-long", "addition-compiled"], q: "101101+011011", at: "network-figure", play: true,
    text: "One block of layers is run again and again. Every row of the grid is one step, from the top down: what the network would answer if it stopped there. Grey is not yet right, blue is right. Watch the answer grow to the right of the sign >.",
    seen: (run) => `After step ${run.stop} the loop stops and ${run.model.key} answers ${said(run)}.`,
  },
  {
    title: "The program beside it", models: ["copy-long", "copy-compiled"], q: "101100101", at: "pair",
    text: "The second grid shows a program that was written by hand for the same task. It repeats one step too: here it moves all bits one place to the right. A trained network has seen questions and answers alone, never these steps. Compare the two pictures.",
    seen: (run) => `The network stops after step ${run.stop}${run.traced ? `, the program is done after step ${run.traced}` : ""}. Networks need not work as the program does: look at other models of the list.`,
  },
  {
    title: "Past the training length", models: ["addition-long", "addition-compiled"], q: LONG.join("+"), at: "far",
    text: "A longer question gets more steps of the same block. This is what the loop is for: an ordinary Transformer has a fixed number of layers, whatever the question.",
    seen: (run) => `${run.model.trained ? `${run.model.key} was trained on up to ${run.model.trained} digits. This question has ${run.start.length}` : `${run.model.key} was never trained; this question has ${run.start.length} digits`}: it takes ${run.stop} steps, and the answer is ${outcome(run)}.`,
  },
  {
    title: "When to stop", models: ["addition-fast", "addition-compiled", "addition-long"], q: "0111110011+0010011010", at: "when",
    text: "How many steps does a question need? The network is not told, so a rule has to decide. All rules look at the same loop. Choose a step in the table to go there.",
    seen: (run) => rules(run),
  },
];

export class Tour {
  /** `show(state)` shows a stop's question and gives the run; `play(step)` plays to it; `left()` is called at the end. */
  constructor(catalogue, { show, play, left }) {
    Object.assign(this, { catalogue, show, play, left });
    this.stops = STOPS.filter((stop) => this.#model(stop) && (api.program || stop.at !== "pair"));
    $("tour-start").hidden = !this.stops.length;
    this.number = 0; // 0: no tour
    this.own = false; // a question of the visitor's own is being looked at meanwhile
    $("tour-start").addEventListener("click", () => this.#move(1));
    $("tour-back").addEventListener("click", () => this.#move(this.number - 1));
    $("tour-next").addEventListener("click", () => this.#move(this.number + 1));
    $("tour-end").addEventListener("click", () => this.end());
    $("tour").addEventListener("keydown", (event) => this.#key(event));
  }

  /** The stop that the address should name. */
  get address() { return this.number && !this.own ? { tour: this.number } : null; }

  has(number) { return Number.isInteger(number) && number >= 1 && number <= this.stops.length; }

  #model(stop) { return stop.models.find((key) => this.catalogue.models.some((each) => each.key === key)); }

  async go(number) {
    const stop = this.stops[number - 1];
    this.number = number; this.own = false;
    $("tour").hidden = false;
    document.body.classList.add("touring");
    $("tour-count").textContent = `Stop ${number} of ${this.stops.length}`;
    $("tour-title").textContent = stop.title;
    $("tour-text").textContent = stop.text;
    $("tour-seen").textContent = "";
    $("tour-back").disabled = number === 1;
    $("tour-next").textContent = number === this.stops.length ? "Finish" : "Next";
    $("tour").focus({ preventScroll: true });
    const run = await this.show({ model: this.#model(stop), q: stop.q });
    if (this.number !== number || !run?.rules) return;
    $("tour-seen").textContent = stop.seen(run);
    this.#spot(stop.at);
    if (stop.play) this.play(run.stop);
  }

  end() {
    this.number = 0;
    $("tour").hidden = true;
    document.body.classList.remove("touring");
    this.#spot(null);
    this.left();
    $("tour-start").focus({ preventScroll: true });
  }

  /** Through the address, so that the browser's Back button works too. */
  #move(number) {
    if (number > this.stops.length) return this.end();
    if (number < 1) return;
    Object.assign(this, { number, own: false }); // before the address: what writes it meanwhile must not undo it
    location.hash = `tour=${number}`;
  }

  #spot(id) {
    for (const old of document.querySelectorAll(".spot")) old.classList.remove("spot");
    if (!id) return;
    $(id).classList.add("spot");
    $(id).scrollIntoView({ block: "start", behavior: calm() ? "auto" : "smooth" });
  }

  #key(event) {
    const moves = { ArrowLeft: () => this.#move(this.number - 1), ArrowRight: () => this.#move(this.number + 1), Escape: () => this.end() };
    if (!moves[event.key]) return;
    event.preventDefault(); event.stopPropagation(); // not a step of the loop
    moves[event.key]();
  }
}

/** Whether the visitor's system asks for less motion. */
export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

const stopped = (run) => run.steps[run.stop - 1];
const said = (run) => `${stopped(run).answer || "nothing"}${stopped(run).meaning ? ` = ${stopped(run).meaning}` : ""}, which is ${outcome(run)}`;
const outcome = (run) => (stopped(run).correct ? "right" : "wrong");

/** What the rules chose, in a sentence for each outcome. */
function rules(run) {
  const found = { right: [], wrong: [], never: [] };
  for (const rule of run.rules) found[rule.stopped ? (rule.correct ? "right" : "wrong") : "never"].push(rule.stopped ? `${rule.name} (step ${rule.step})` : rule.name);
  const told = [["right", "Right here"], ["wrong", "Stopped at a wrong answer"], ["never", "Did not stop in these steps"]];
  return told.filter(([kind]) => found[kind].length).map(([kind, words]) => `${words}: ${found[kind].join(", ")}.`).join(" ");
}
