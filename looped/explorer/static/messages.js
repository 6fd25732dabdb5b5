// What both back ends share: server.js asks `looped explore`, local.js computes in this page.

/** An answer that is a refusal: its message is a sentence for people. */
export class Refused extends Error {}

/** The tokens that a model says over `steps` steps, as a variable of a program: one row a step, none before the first. */
export async function said(run, wanted, steps) {
  let columns = 0, values = null;
  await run(wanted, (message) => {
    if (message.kind === "start") {
      columns = message.row.length;
      values = new Int16Array((steps + 1) * columns).fill(-1);
    } else if (message.kind === "step" && message.step <= steps) {
      values.set(message.tokens.subarray(0, columns), message.step * columns);
    }
  });
  return { values, columns };
}
