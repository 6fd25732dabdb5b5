// The form: which task, which model, which question. Knows the catalogue; asks nobody anything itself.

const $ = (id) => document.getElementById(id);
const MANY_TIMES = 10; // how far past the training length the slider goes
const UNTRAINED = 60; // and for a model that was never trained

const FAMILIES = {
  uniform: "random", zeros: "all zeros", ones: "all ones", repeated: "one symbol repeated", carry: "longest carry",
  "no-carry": "no carries", few: "three symbols", distinct: "all different",
};

export class Controls {
  /** `on.ask()`, `on.draw()` and `on.model()` are called when a person asks, draws or changes the model. */
  constructor(catalogue, on) {
    this.catalogue = catalogue; this.on = on;
    const offered = new Set(catalogue.models.map((model) => model.task));
    $("task").replaceChildren(...catalogue.tasks.filter((task) => offered.has(task.name)).map((task) => option(task.name, task.name.replaceAll("_", " "))));
    $("stretch").replaceChildren(...catalogue.stretches.map((times) => option(times, times === 1 ? "T(n) steps" : `${times} × T(n)`)));
    $("stretch").value = String(catalogue.stretch);
    $("task").addEventListener("change", () => { this.#models(); on.model(); });
    $("model").addEventListener("change", () => { this.#ranges(); on.model(); });
    $("length").addEventListener("input", () => this.#length());
    $("length").addEventListener("change", on.draw);
    $("family").addEventListener("change", on.draw);
    $("draw").addEventListener("click", on.draw);
    $("stretch").addEventListener("change", on.ask);
    $("ask").addEventListener("submit", (event) => { event.preventDefault(); on.ask(); });
  }

  get task() { return this.catalogue.tasks.find((task) => task.name === $("task").value); }
  get model() { return this.catalogue.models.find((model) => model.key === $("model").value); }
  get question() { return $("question").value; }
  set question(text) { $("question").value = text; }
  get stretch() { return Number($("stretch").value); }
  get drawn() { return { length: Number($("length").value), family: $("family").value }; }

  /** Chooses what an address asks for, as far as there is such a thing. */
  choose({ task, model, q, for: stretch }) {
    const wanted = this.catalogue.models.find((each) => each.key === model);
    const known = wanted?.task ?? (this.catalogue.models.some((each) => each.task === task) ? task : this.#first());
    $("task").value = known;
    this.#models(wanted?.key);
    if (this.catalogue.stretches.includes(stretch)) $("stretch").value = String(stretch);
    if (q !== undefined) this.question = q;
    return { missing: model !== undefined && !wanted };
  }

  /** Moves the slider to a question's length without drawing one. */
  showLength(length) {
    $("length").value = String(length);
    this.#length();
  }

  /** A sentence about what went wrong, or a plain one; empty to take it away. */
  say(text, plain = false) {
    $("message").textContent = text;
    $("message").classList.toggle("plain", plain);
    $("question").setAttribute("aria-invalid", String(Boolean(text) && !plain));
  }

  #first() {
    const trained = this.catalogue.models.find((model) => model.trained !== null);
    return (trained ?? this.catalogue.models.find((model) => model.task === "addition") ?? this.catalogue.models[0]).task;
  }

  #models(key) {
    const models = this.catalogue.models.filter((model) => model.task === $("task").value);
    $("model").replaceChildren(...models.map((model) => option(model.key, model.label)));
    if (key) $("model").value = key;
    $("family").replaceChildren(...this.task.families.map((name) => option(name, FAMILIES[name] ?? name.replace("p=", "ones with p = "))));
    this.#ranges();
  }

  #ranges() {
    const { model } = this, top = Math.min(model.longest, model.trained ? MANY_TIMES * model.trained : UNTRAINED);
    $("length").max = String(top);
    const mark = $("length-mark");
    mark.hidden = !model.trained;
    if (model.trained) mark.style.left = `calc(8px + (100% - 16px) * ${(model.trained - 1) / Math.max(1, top - 1)})`;
    $("question").placeholder = this.task.example;
    $("question").maxLength = this.catalogue.limits.text;
    $("layer").replaceChildren(...d3.range(model.layers).map((i) => option(i, `layer ${i + 1}`)));
    $("head").replaceChildren(...model.bands.map((band, i) => option(i, `head ${i + 1}, ${seen(model, band, i)}`)));
    this.#length();
  }

  #length() {
    const length = Number($("length").value), { trained } = this.model;
    const beyond = trained && length > trained ? ` (${(length / trained).toFixed(1)} × the training length)` : "";
    $("length-shown").textContent = `${length}${beyond}`;
  }
}

function seen(model, band, head) {
  if (head >= model.heads - model.running) return "the best so far";
  return band === 0 ? "all" : band === 1 ? "itself" : `last ${band}`;
}

function option(value, text) {
  const made = document.createElement("option");
  made.value = String(value);
  made.textContent = text;
  return made;
}
