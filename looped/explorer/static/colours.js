// Colours of the present theme, for canvas: read from the stylesheet, mixed here.

let known = null;
addEventListener("themechange", () => { known = null; });

/** The stylesheet's colours by name: `theme().right`. */
export function theme() {
  if (known) return known;
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "card", "ink", "muted", "line", "soft", "right", "wrong", "trained", "corner"];
  known = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  known.mono = style.getPropertyValue("--mono").trim();
  known.sans = style.getPropertyValue("--sans").trim();
  return known;
}

const mixers = new Map();

/** A colour between two, 0 for the first and 1 for the second, in 33 shades. */
export function mix(from, to, share) {
  const shade = Math.round(Math.min(1, Math.max(0, share)) * 32);
  const key = `${from} ${to} ${shade}`;
  if (!mixers.has(key)) mixers.set(key, d3.interpolateLab(from, to)(shade / 32));
  return mixers.get(key);
}

/** Ink that can be read on a fill. */
export function inkOn(fill) {
  const colours = theme();
  const light = (colour) => d3.lab(colour).l;
  return Math.abs(light(fill) - light(colours.ink)) > 45 ? colours.ink : colours.card;
}
