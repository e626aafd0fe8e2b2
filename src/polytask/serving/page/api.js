// Requests to the server, and the same requests as curl commands.

const KEY = "polytask-key";
const RETRIES = 5;
let key = remembered();

function remembered() {
  try {
    return sessionStorage.getItem(KEY) || "";
  } catch {
    return "";
  }
}

/** Uses a key from now on; "" forgets it. */
export function useKey(value) {
  key = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // without storage, the key is known as long as the page is open
  }
}

export const hasKey = () => Boolean(key);

/** A request that was not answered. */
export class Failure extends Error {
  constructor(message, type, status) {
    super(message);
    this.type = type;
    this.status = status;
  }
}

/** The answer to a request; a Failure if there is none. `results` of a request whose inputs all failed are an answer. */
export async function call(path, body, signal) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const options = { headers, signal, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["content-type"] = "application/json";
  }
  let response, answer;
  try {
    response = await fetch(new URL(path, document.baseURI), options);
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server cannot be reached, or its answer cannot be read.", "network", 0);
  }
  if (response.ok || answer.results) return answer;
  throw new Failure(String(answer.error), answer.error_type, response.status);
}

/** Like `call`, but waits and tries again while the server is busy. */
export async function callPatiently(path, body, signal) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await call(path, body, signal);
    } catch (error) {
      if (![429, 503].includes(error.status) || attempt > RETRIES) throw error;
      await wait(1000 * attempt, signal);
    }
  }
}

function wait(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

/** The command that sends the same request. The key is left to a variable, so that a copy does not give it away. */
export function curl(path, body) {
  const address = new URL(path, document.baseURI).href;
  const lines = [`curl ${quoted(address)}`];
  if (key) lines.push(`-H "Authorization: Bearer $POLYTASK_API_KEY"`);
  lines.push("-H 'content-type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

/** A word of a shell command. */
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
