// Parts that every page uses. All text goes through Preact as text nodes; nothing is ever parsed as HTML.
import {html} from "htm/preact";
import {signal} from "@preact/signals";
import {useEffect, useLayoutEffect, useRef, useState} from "preact/hooks";

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
/** Text with control and direction characters made visible, so that a name cannot pose as another. */
export const plain = text =>
  String(text ?? "").replace(CONTROL, one => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Text for a place of limited width. Each box that clips its text costs work in every frame of scrolling; a row has one. */
export const cut = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

export const when = ms => ms == null ? "" : new Date(ms).toLocaleString("sv-SE");
export const number = value => value.toLocaleString("en-US");
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
export const span = ms => {
  if (ms == null) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const [size, unit] = ms < 60000 ? [1000, "s"] : ms < 3600000 ? [60000, "min"] : [3600000, "h"];
  return `${(ms / size).toFixed(1).replace(/\.0$/, "")} ${unit}`;
};

const SIGNS = {completed: "✓", running: "▶", failed: "✗", interrupted: "‖", cancelled: "–"};
export const Status = ({value}) => html`<span class=${`status ${value}`}><span aria-hidden="true">${SIGNS[value] || "·"}</span> ${plain(value)}</span>`;

/** A value as JSON text; a large one is shown in part, and whole when asked for. */
export function Value({value, label}) {
  const [whole, setWhole] = useState(false);
  const text = plain(typeof value === "string" ? value : JSON.stringify(value, null, 2));
  const shown = whole || text.length <= 20000 ? text : text.slice(0, 20000) + "…";
  return html`<pre tabindex="0" aria-label=${label}>${shown}</pre>
    ${shown.length < text.length && html`<button onClick=${() => setWhole(true)}>Show all ${number(text.length)} characters</button>`}`;
}

const TYPED_MS = 250;
/** A field that filters while somebody types: told of its text after a short pause. */
export function Filter({label, placeholder, field, onChange}) {
  const timer = useRef(0), told = useRef(onChange);
  told.current = onChange;
  useEffect(() => () => clearTimeout(timer.current), []);
  const typed = event => {
    const text = event.currentTarget.value.trim();
    clearTimeout(timer.current);
    timer.current = setTimeout(() => told.current(text), TYPED_MS);
  };
  return html`<label>${label} <input ref=${field} type="search" placeholder=${placeholder} onInput=${typed} /></label>`;
}

/** What the page is about, for the title of the window; the page before it is forgotten. */
export const subject = signal("");
export const useSubject = text => useEffect(() => { subject.value = plain(text); }, [text]);

export function Command({text}) {
  const [copied, setCopied] = useState(false);
  const copy = () => navigator.clipboard?.writeText(text).then(() => setCopied(true), () => {});
  return html`<p class="command"><code>${plain(text)}</code> <button onClick=${copy}>${copied ? "Copied" : "Copy"}</button></p>`;
}

const STEP = 4;  // rows that come and go at once: most frames of scrolling then draw nothing anew
/** A list of any length: only the rows in view exist. `row(item, index)` gives what stands in a row.
 * Scrolling makes only the rows that come into view; they take the elements of those that went. */
export function LongList({items, height, row, selected, onSelect, label}) {
  const box = useRef(null);
  const made = useRef({});
  const [top, setTop] = useState(0);
  const [tall, setTall] = useState(600);
  useEffect(() => {
    const watch = new ResizeObserver(() => setTall(box.current?.clientHeight || 600));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    if (selected == null || selected < 0) return;
    const at = selected * height, seen = box.current;
    if (at < seen.scrollTop) seen.scrollTop = at;
    else if (at + height > seen.scrollTop + seen.clientHeight) seen.scrollTop = at + height - seen.clientHeight;
  }, [selected]);
  const first = Math.max(0, Math.floor(top / height) - STEP);
  const last = Math.min(items.length, Math.ceil((top + tall) / height) + 2 * STEP);
  const places = Math.ceil(tall / height) + 3 * STEP;  // as many as are drawn: who goes and who comes have the same one
  const known = made.current.of?.every((one, at) => one === [items, row, selected, places][at]) ? made.current.rows : new Map();
  const rows = new Map();
  for (let index = first; index < last; index++) {
    rows.set(index, known.get(index) || html`<div key=${index % places} id=${`row-${index}`} role="option" aria-selected=${index === selected} aria-posinset=${index + 1}
      aria-setsize=${items.length} class="line" style=${{top: `${index * height}px`, height: `${height}px`}}
      onClick=${() => onSelect(index)}>${row(items[index], index)}</div>`);
  }
  made.current = {of: [items, row, selected, places], rows};
  return html`<div class="long" ref=${box} role="listbox" tabindex="0" aria-label=${label}
      aria-activedescendant=${selected >= first && selected < last ? `row-${selected}` : undefined}
      onScroll=${event => setTop(Math.floor(event.currentTarget.scrollTop / height / STEP) * height * STEP)}>
    <div role="presentation" style=${{height: `${items.length * height}px`}}>${[...rows.values()]}</div></div>`;
}

/** Keys of a page, while it is shown: {"j": function, "g i": one after the other, …}. Not while somebody types or is asked
 * something; and Enter belongs to the link or button that has the focus. */
export function useKeys(keys) {
  const now = useRef(keys), before = useRef("");
  now.current = keys;
  useLayoutEffect(() => { // what is seen can be typed at
    const pressed = event => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
      if (document.querySelector("dialog[open]") || event.key === "Enter" && event.target.closest("a, button, summary")) return;
      const act = now.current[`${before.current} ${event.key}`] || now.current[event.key];
      before.current = event.key;
      if (act) {
        event.preventDefault();
        act();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}
