// The six tasks as an exported page needs them: read a question, solve it, print it, say an answer, draw one. Says what looped/tasks says.

import { Refused } from "./messages.js";

const LONGEST = 4096, LONGEST_DECIMAL = 64, ALPHABET = 50;

const refuse = (text) => { throw new Refused(text); };
const squeezed = (text) => [...text.replace(/\s+/g, "")];
const shown = (text) => { const cut = text.length <= 20 ? text : `${text.slice(0, 20)}…`; return cut.includes("'") && !cut.includes('"') ? `"${cut}"` : `'${cut.replaceAll("'", "\\'")}'`; };
const reversed = (text) => [...text].reverse().join("");
const binary = (bits) => BigInt(`0b${bits}`);
const decimal = (bits) => (/^[01]+$/.test(bits) && bits.length <= LONGEST_DECIMAL ? binary(bits).toLocaleString("en-US") : "");

function checked(task, length) {
  if (length < 1 || length > LONGEST) refuse(`a ${task.name} problem's length must be between 1 and ${LONGEST}, not ${length}`);
  return length;
}

/** A task on one string of bits: `solve(bits)` and `meaning(answer)` are its own. */
const bitString = (solve, meaning = () => "") => ({
  parse(task, text) {
    const tokens = squeezed(text);
    if (!tokens.length) refuse(`an empty question: ${task.name} needs at least one bit, as in ${task.example}`);
    for (const token of tokens) if (!/^[01]$/.test(token)) refuse(`${shown(token)} is no bit: ${task.name} questions look like ${task.example}`);
    return { tokens, length: checked(task, tokens.length), variant: 0 };
  },
  solve: (tokens) => [...solve(tokens.join(""))],
  print: (tokens) => tokens.join(""),
  say: (tokens) => tokens.join(""),
  meaning,
  draw: (family, length, random) => bits(family, length, random).join(""),
});

/** A task on two binary numbers: `check(task, first, second)` gives length and variant, `drawn` both numbers. */
const twoNumbers = ({ sign, typed, check, solve, meaning, drawn, before = (text) => text }) => ({
  parse(task, text) {
    const tokens = squeezed(before(text)).map((each) => (typed.includes(each) ? sign : each)), looks = `${task.name} questions look like ${task.example}`;
    if (!tokens.length) refuse(`an empty question: ${looks}`);
    for (const token of tokens) if (token !== sign && !/^[01]$/.test(token)) refuse(`${shown(token)} is neither a bit nor the sign ${typed[0]}: ${looks}`);
    const count = tokens.filter((token) => token === sign).length, at = tokens.indexOf(sign);
    if (count !== 1) refuse(`exactly one ${typed[0]} stands between two numbers, not ${count}: ${looks}`);
    if (at === 0 || at === tokens.length - 1) refuse(`a number is missing beside the ${typed[0]}: ${looks}`);
    return { tokens, ...check(task, tokens.slice(0, at), tokens.slice(at + 1)) };
  },
  solve(tokens) {
    const at = tokens.indexOf(sign), first = tokens.slice(0, at).join(""), second = tokens.slice(at + 1).join("");
    return [...solve(first, second)];
  },
  print: (tokens) => tokens.map((token) => (token === sign ? typed[0] : token)).join(""),
  say: (tokens) => tokens.join(""),
  meaning,
  draw: (family, length, random) => drawn(family, length, random).map((number) => number.join("")).join(typed[0]),
});

export const TASKS = {
  parity: bitString((bits) => String([...bits].filter((bit) => bit === "1").length % 2), (answer) => ({ 0: "even", 1: "odd" })[answer] ?? ""),
  copy: bitString((bits) => bits),
  binary_sum: bitString(
    (bits) => reversed([...bits].filter((bit) => bit === "1").length.toString(2)).replace(/0+$/, ""),
    (answer) => { const value = decimal(reversed(answer) || "0"); return value && `${value} ${value === "1" ? "one" : "ones"}, least significant first`; },
  ),
  addition: twoNumbers({
    sign: "+", typed: "+",
    before(text) {
      const whole = squeezed(text).join(""), at = whole.indexOf("+"), first = whole.slice(0, Math.max(0, at)), second = whole.slice(at + 1);
      const size = Math.max(first.length, second.length);
      return first && second && size <= LONGEST ? `${first.padStart(size, "0")}+${second.padStart(size, "0")}` : text;
    },
    check(task, first, second) {
      if (first.length !== second.length) refuse(`the numbers of an addition have equally many digits, not ${first.length} and ${second.length}: fill the shorter one up with zeros on the left`);
      return { length: checked(task, first.length), variant: 0 };
    },
    solve: (first, second) => (binary(first) + binary(second)).toString(2).padStart(first.length + 1, "0"),
    meaning: decimal,
    drawn(family, length, random) {
      if (!family.includes("carry")) return [bits(family, length, random), bits(family, length, random)];
      const first = bits(random() < 0.5 ? "repeated" : "uniform", length, random), second = first.map((bit) => 1 - bit);
      if (family === "carry") first[length - 1] = second[length - 1] = 1; // the lowest place makes one
      return [first, second];
    },
  }),
  multiplication: twoNumbers({
    sign: "×", typed: "*×xX",
    check(task, first, second) {
      if (first.length > 2) refuse(`the first factor of a multiplication has 1 or 2 digits, not ${first.length}, as in ${task.example}`);
      return { length: checked(task, second.length), variant: first.length - 1 };
    },
    solve: (first, second) => reversed((binary(first) * binary(second)).toString(2).padStart(first.length + second.length, "0")),
    meaning: (answer) => { const value = decimal(reversed(answer)); return value && `${value}, least significant first`; },
    drawn(family, length, random) {
      if (!family.includes("carry")) return [bits(family, 2, random), bits(family, length, random)];
      const start = family === "carry" ? 0 : Math.floor(2 * random()); // places from the lowest: each differs from the one below
      const places = Array.from({ length }, (_, i) => (family === "carry" ? Number(i === 0 || i % 2 === 1) : (i + start) % 2));
      return [[1, 1], places.reverse()];
    },
  }),
  unique_set: {
    parse(task, text) {
      const tokens = text.split(/[\s,]+/).filter(Boolean), known = new Set(task.names.slice(0, ALPHABET));
      if (!tokens.length) refuse(`an empty question: ${task.name} needs at least one symbol, as in ${task.example}`);
      for (const token of tokens) if (!known.has(token)) refuse(`${shown(token)} is not in the alphabet of ${task.name}: the symbols are the numbers 0 to ${ALPHABET - 1}, separated by spaces`);
      return { tokens, length: checked(task, tokens.length), variant: 0 };
    },
    solve: (tokens) => [...new Set(tokens)],
    print: (tokens) => tokens.join(" "),
    say: (tokens) => tokens.join(" "),
    meaning: () => "",
    draw: (family, length, random) => symbols(family, length, random).join(" "),
  },
};

/** Bits of an input distribution, as looped/tasks/families.py names them. */
function bits(family, length, random) {
  const once = random(), share = { uniform: 0.5, zeros: 0, ones: 1, repeated: Math.round(once), mixed: once }[family] ?? Number(family.slice(2));
  return Array.from({ length }, () => Number(random() < share));
}

function symbols(family, length, random) {
  const any = () => Math.floor(ALPHABET * random()), some = (from) => from[Math.floor(from.length * random())];
  const shuffled = Array.from({ length: ALPHABET }, (_, i) => [random(), i]).sort((a, b) => a[0] - b[0]).map((pair) => pair[1]);
  const from = { repeated: [any()], few: [any(), any(), any()], mixed: shuffled.slice(0, any() + 1) }[family];
  return Array.from({ length }, (_, i) => (family === "distinct" ? shuffled[i % ALPHABET] : from ? some(from) : any()));
}

/** Random numbers in [0, 1) that a seed decides (mulberry32). */
export function seeded(seed) {
  let a = (seed ^ Math.floor(seed / 2 ** 32)) >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
