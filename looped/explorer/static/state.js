// What is being looked at, in the address behind the #: every visit to that address shows the same.
// #task=copy&model=copy-fast&q=0110&step=4&layer=0&head=2&show=seq&for=1.5, or #tour=2 for a stop of the tour.

const NUMBERS = new Set(["step", "layer", "head", "for", "tour"]);
const NAMES = ["task", "model", "q", "step", "layer", "head", "show", "for", "tour"];

/** The state an address holds; unknown names and broken numbers are left out. */
export function read(hash = location.hash) {
  const found = {};
  for (const [name, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!NAMES.includes(name)) continue;
    const number = Number(value);
    if (NUMBERS.has(name) && !Number.isFinite(number)) continue;
    found[name] = NUMBERS.has(name) ? number : value;
  }
  return found;
}

/** Puts a state into the address without a new entry in the browser's history. */
export function write(state) {
  const pairs = NAMES.filter((name) => state[name] !== undefined && state[name] !== "").map((name) => [name, state[name]]);
  history.replaceState(null, "", `#${new URLSearchParams(pairs)}`);
}
