// The HTTP API, and the key of this tab. A file has the answers inside and asks nobody.
import {signal} from "@preact/signals";

const EVENT = /\/events\/(\d+)$/;
const STORED = "antiphon-key";
export const me = signal(null);
export const problem = signal("");

/** JSON in which integers that a number of JavaScript cannot hold stay as they are written, also when it is written again. */
export const exactly = text => !JSON.rawJSON || !/\d{16}/.test(text) ? JSON.parse(text) : JSON.parse(text, (_, value, {source}) =>
  typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source) ? JSON.rawJSON(source) : value);

const held = document.getElementById("data");
/** What a file shows; nothing in a page of a host. */
export const inlined = held && JSON.parse(held.textContent);
let events = null;
const fromFile = path => {
  const asked = path.split("?")[0], number = EVENT.exec(asked);
  if (number) events ??= exactly(document.getElementById("events").textContent);
  const found = number ? events[number[1]] : inlined.answers[decodeURIComponent(asked)];
  if (!found) throw new Failed(404, {message: "It was too long for this file; the command below prints it."});
  return found;
};

let key = inlined ? "" : sessionStorage.getItem(STORED) || "";
const given = /^#key=([\w-]+)/.exec(location.hash);
if (given) {
  key = given[1];
  sessionStorage.setItem(STORED, key);
  history.replaceState(null, "", location.pathname + "#/runs");
}

export class Failed extends Error {
  constructor(status, body) {
    super(body.message || `The host answered ${status}.`);
    this.status = status;
  }
}

export async function ask(path, options = {}) {
  if (inlined) return fromFile(path);
  const headers = {Accept: "application/json"};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (options.body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method: options.body ? "POST" : "GET",
    headers,
    signal: options.signal,
    body: options.body && JSON.stringify(options.body),
  }).catch(error => {
    throw options.signal?.aborted ? error : new Failed(0, {message: "The host does not answer."});
  });
  const body = await answer.text().then(EVENT.test(path) ? exactly : JSON.parse).catch(error => {
    if (answer.ok) throw error;  // it was cut off: half an answer is none
    return {};
  });
  if (!answer.ok) {
    if (answer.status === 401) me.value = null;
    throw new Failed(answer.status, body);
  }
  return body;
}

export async function signIn(text) {
  if (text !== undefined) key = text.trim();
  try {
    me.value = await ask("/v1/me");
    if (key) sessionStorage.setItem(STORED, key);
    problem.value = "";
  } catch (failed) {
    problem.value = text === undefined && failed.status === 401 ? "" : failed.message;
  }
}

export function signOut() {
  key = "";
  sessionStorage.removeItem(STORED);
  me.value = null;
}

export const query = given => {
  const text = new URLSearchParams(Object.entries(given).filter(([, value]) => value !== "" && value != null)).toString();
  return text ? `?${text}` : "";
};

/** A path of the API or an address of a page; each id in it is one part of it. */
export const address = (texts, ...ids) => String.raw({raw: texts}, ...ids.map(encodeURIComponent));

/** Calls `work` now and again after each pause, until the returned function is called; one call at a time. */
export function repeat(pause, work) {
  const control = new AbortController();
  let timer = 0;
  const turn = async () => {
    let wait = pause;
    if (!document.hidden) {
      try {
        const goesOn = await work(control.signal);
        problem.value = "";
        if (goesOn === false) return;
      } catch (failed) {
        if (control.signal.aborted) return;
        problem.value = failed.status === 0 ? `${failed.message} This page keeps trying.` : failed.message;
        wait = Math.max(pause, 2000);
        if (failed.status === 404 || failed.status === 403) return;
      }
    }
    if (!control.signal.aborted) timer = setTimeout(turn, wait);
  };
  turn();
  return () => {
    control.abort();
    clearTimeout(timer);
  };
}
