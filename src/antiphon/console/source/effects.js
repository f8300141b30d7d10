// The ledger of effects: what was asked for, sent once, suppressed how often, and settled by whom.
import {html} from "htm/preact";
import {useEffect, useRef, useState} from "preact/hooks";
import {address, ask, query, repeat} from "./api.js";
import {Command, Filter, number, plain, useKeys, when} from "./ui.js";

const STATES = ["", "inflight", "done", "failed", "cancelled", "unknown"];
const LIMIT = 50;

const sent = one => {
  if (one.state === "inflight") return one.lost ? "worker lost" : "in flight";
  if (!one.dispatched && !one.attempts) return "not sent";
  return one.attempts > 1 ? `once, ${one.attempts} attempts` : "once";
};
const WAITS = "waits for approval";
const stateOf = one => one.approval === "waiting" ? WAITS : one.approval || one.state;
const settled = one => {
  if (one.settledBy) return `${one.settledBy.by}: ${one.settledBy.verdict || one.settledBy.act}`;
  return one.state === "inflight" || one.state === "unknown" || one.approval ? "nobody yet" : "its worker";
};

function Detail({one, onClose}) {
  return html`<aside aria-label="Effect" aria-live="polite"><h2><bdi>${plain(one.tool)}</bdi></h2>
    <dl><dt>State</dt><dd>${plain(stateOf(one))}</dd><dt>Intent</dt><dd><code>${plain(one.idempotencyKey)}</code></dd>
      <dt>Claim</dt><dd><code>${one.fingerprint}</code></dd><dt>Asked by</dt><dd><bdi>${plain(one.actor)}</bdi> in <bdi>${plain(one.session)}</bdi>${one.callId && html`, call <bdi>${plain(one.callId)}</bdi>`}</dd>
      <dt>Process</dt><dd><code>${plain(one.process)}</code></dd><dt>Sent</dt><dd>${sent(one)}</dd><dt>Suppressed</dt><dd>${one.suppressed ?? "…"}</dd>
      <dt>Settled by</dt><dd><bdi>${plain(settled(one))}</bdi>${one.settledBy?.reason && html`: <bdi>${plain(one.settledBy.reason)}</bdi>`}</dd>
      <dt>First asked</dt><dd>${when(one.createdAtMs)}</dd><dt>Changed</dt><dd>${when(one.updatedAtMs)}</dd>
      <dt>Kept until</dt><dd>${one.expiresAtMs ? when(one.expiresAtMs) : "somebody settles it"}</dd>
      ${one.runs?.length > 0 && html`<dt>Runs</dt><dd>${one.runs.map(run => html`<a href=${address`#/runs/${run}`}>${run.slice(0, 13)}</a> `)}</dd>`}</dl>
    ${one.error && html`<p><bdi>${plain(`${one.error.code}: ${one.error.message}`)}</bdi></p>`}
    ${one.arguments && html`<pre tabindex="0" aria-label="Arguments">${plain(one.arguments)}</pre>`}
    ${(one.state === "unknown" || one.lost) && html`<p><a href="#/inbox">Settle it in the inbox</a></p>`}
    ${one.approval === "waiting" && html`<p><a href="#/inbox">Decide on it in the inbox</a></p>`}
    <${Command} text=${`antiphon claims show ${one.fingerprint}`} /><p><button onClick=${onClose}>Close</button></p></aside>`;
}

export function Effects() {
  const [tool, setTool] = useState("");
  const [state, setState] = useState("");
  const [pages, setPages] = useState([""]);
  const [found, setFound] = useState(null);
  const [at, setAt] = useState("");
  const field = useRef(null);
  const before = pages[pages.length - 1];
  useEffect(() => {
    let first = true;  // counting reads runs: the claims are shown before it is done
    return repeat(700, async signal => {
      const which = {limit: LIMIT, tool, state, before};
      if (first) setFound(await ask(`/v1/effects${query(which)}`, {signal}));
      first = false;
      setFound(await ask(`/v1/effects${query({...which, count: "true"})}`, {signal}));
      return before === "" ? undefined : false;
    });
  }, [tool, state, before]);
  const restart = act => {
    act();
    setPages([""]);
    setAt("");
  };
  const rows = found ? found.effects : [], index = rows.findIndex(one => one.key === at);
  const move = step => rows.length && setAt(rows[Math.max(0, Math.min(rows.length - 1, index + step))].key);
  useKeys({j: () => move(1), k: () => move(-1), Escape: () => setAt(""), "/": () => field.current.focus()});
  const looked = found?.looked;
  return html`<h1>Effects</h1>
    <form class="tools" onSubmit=${event => event.preventDefault()}>
      <${Filter} label="Tool" placeholder="part of a name" field=${field} onChange=${typed => restart(() => setTool(typed))} />
      <label>State <select value=${state} onChange=${event => restart(() => setState(event.currentTarget.value))}>${STATES.map(one => html`<option value=${one}>${one || "any"}</option>`)}</select></label>
    </form>
    ${found === null ? html`<p>Loading…</p>` : html`
    <p class="note" id="looked">${looked ? `Suppressed calls are counted in the ${looked.isWhole ? "" : "newest "}${number(looked.runs)} runs; calls outside a run are not recorded and not counted.` : "Counting suppressed calls…"}</p>
    <div class="beside"><div class="wide" tabindex="0" role="region" aria-label="Effects"><table>
      <thead><tr><th scope="col">Intent</th><th scope="col">State</th><th scope="col">Sent</th><th scope="col">Suppressed</th><th scope="col">Asked by</th><th scope="col">Process</th><th scope="col">Settled by</th><th scope="col">Changed</th></tr></thead>
      <tbody>${rows.map(one => html`<tr key=${one.key} class=${one.key === at ? "at" : ""}>
        <td><code>${one.fingerprint.slice(0, 8)}</code> <button class="link" onClick=${() => setAt(one.key)}><bdi>${plain(one.tool)}</bdi></button></td>
        <td class=${one.state === "unknown" || one.lost ? "failed" : ""}>${one.approval === "waiting" ? html`<a href="#/inbox">${WAITS}</a>` : plain(stateOf(one))}</td><td>${sent(one)}</td><td>${one.suppressed ?? "…"}</td>
        <td><bdi>${plain(one.actor)}</bdi></td><td><code>${plain(one.process).split(".").slice(-2, -1)[0] || plain(one.process).slice(0, 12)}</code></td>
        <td><bdi>${plain(settled(one))}</bdi></td><td>${when(one.updatedAtMs)}</td></tr>`)}</tbody></table></div>
      ${index >= 0 && html`<${Detail} one=${rows[index]} onClose=${() => setAt("")} />`}</div>
    ${rows.length < LIMIT && found.next ? html`<p>${rows.length ? "" : "No effect fits. "}${number(found.searched)} were searched; there are more.</p>`
      : rows.length === 0 && html`<p>${tool || state ? "No effect fits." : "No call has claimed anything yet."}</p>`}
    <p class="tools">
      <button disabled=${pages.length === 1} onClick=${() => { setPages(pages.slice(0, -1)); setAt(""); }}>Newer</button>
      <button disabled=${!found.next} onClick=${() => { setPages([...pages, found.next]); setFound({...found, next: ""}); setAt(""); }}>${rows.length < LIMIT && found.next ? "Search further" : "Older"}</button>
    </p>`}`;
}
