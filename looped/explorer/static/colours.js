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

/** Black or white, whichever reads better on a fill: the better of the two has a contrast of at least 4.58 on any. */
export function inkOn(fill) { return contrast("#000", fill) > contrast("#fff", fill) ? "#000" : "#fff"; }

/** The contrast of two colours as WCAG defines it, from 1 to 21. */
export function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

function luminance(colour) {
  const { r, g, b } = d3.rgb(colour), linear = (c) => (c <= 10.31475 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}
