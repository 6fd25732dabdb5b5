// "Ask the server": its five addresses. Knows messages, nothing of the page.

import { Refused } from "./messages.js";

export const WHERE = "on this machine only";
export const SILENT = "The server does not answer: is looped explore still running?";

const BUSY = 503;

async function send(path, body, signal) {
  for (let tries = 0; ; tries++) {
    const response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers: body ? { "content-type": "application/json" } : {},
      body: body && JSON.stringify(body),
      signal,
    });
    if (response.ok) return response;
    if (response.status !== BUSY || tries === 5) {
      const said = await response.json().catch(() => ({}));
      throw new Refused(said.error ?? `the server answered ${response.status}`);
    }
    await new Promise((done) => setTimeout(done, 300 * 2 ** tries));
  }
}

const json = async (path, body, signal) => (await send(path, body, signal)).json();

export const catalogue = () => json("/api/catalogue");
export const draw = (wanted) => json("/api/draw", wanted);

/** The program's variables, each with `at(step, position)`. */
export async function program(model, question, signal) {
  const found = await json("/api/program", { model, question }, signal);
  for (const variable of found.variables) {
    variable.values = new Int16Array(unpack(variable.values));
    variable.columns = variable.values.length / (found.steps + 1);
    variable.answers = variable.name === "output";
  }
  return found;
}

/** Attention as bytes, row by row: how much position i takes from position j, of 255. */
export async function attention(wanted, signal) {
  const found = await json("/api/attention", wanted, signal);
  return { size: found.size, shares: new Uint8Array(unpack(found.shares)) };
}

/** A question's way through the loop; `on` is called with every message as it comes. */
export async function run(wanted, on, signal) {
  const response = await send("/api/run", wanted, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let ended = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const message = JSON.parse(line);
      if (message.kind === "error") throw new Refused(message.error);
      if (message.kind === "step") {
        message.tokens = new Uint16Array(unpack(message.tokens));
        message.shares = new Uint16Array(unpack(message.shares));
      }
      ended ||= message.kind === "end";
      on(message);
    }
  }
  if (!ended) throw new Refused("the server stopped before the loop was over");
}

/** Base64 of little-endian numbers, as every machine that runs a browser has them. */
function unpack(text) {
  const signs = atob(text), bytes = new Uint8Array(signs.length);
  for (let i = 0; i < signs.length; i++) bytes[i] = signs.charCodeAt(i);
  return bytes.buffer;
}
