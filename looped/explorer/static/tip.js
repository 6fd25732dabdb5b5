// The note beside the pointer: the probabilities of a position at a step.

const tip = () => document.getElementById("tip");

/** Shows lines [{name, share, right}] under a title, near a point of the window. */
export function show(title, lines, x, y) {
  const heading = document.createElement("h3");
  heading.textContent = title;
  tip().replaceChildren(heading, ...lines.map(bar));
  tip().hidden = false;
  const { width, height } = tip().getBoundingClientRect();
  tip().style.left = `${Math.max(6, Math.min(x + 12, innerWidth - width - 6))}px`;
  tip().style.top = `${Math.max(6, Math.min(y + 16, innerHeight - height - 6))}px`;
}

export function hide() { tip().hidden = true; }

function bar({ name, share, right }) {
  const row = document.createElement("div"), label = document.createElement("span");
  const fill = document.createElement("i"), number = document.createElement("span");
  row.className = right ? "bar right" : "bar";
  label.className = "mono";
  label.textContent = name;
  fill.style.width = `${(100 * share).toFixed(1)}%`;
  number.textContent = percent(share);
  row.append(label, fill, number);
  return row;
}

/** 99.98 %, but never 100 % for something that is not certain. */
export function percent(share) {
  const value = 100 * share;
  if (value > 99.995) return "100 %";
  return `${value.toFixed(value > 99 || value < 1 ? 2 : 1)} %`;
}
