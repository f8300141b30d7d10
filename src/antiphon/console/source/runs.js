// The list of runs: newest first, live, searched, page by page.
import {html} from "htm/preact";
import {useEffect, useRef, useState} from "preact/hooks";
import {address, ask, query, repeat} from "./api.js";
import {Filter, Status, number, plain, span, useKeys, when} from "./ui.js";

const STATUSES = ["", "running", "completed", "failed", "interrupted", "cancelled"];
const LIMIT = 50;
const shown = count => count ? number(count) : "";
const SUMS = new Map();  // of runs that were shown; those that are over do not change

export function Runs() {
  const [text, setText] = useState("");
  const [tool, setTool] = useState("");
  const [content, setContent] = useState("");
  const [sums, setSums] = useState(new Map());
  const [status, setStatus] = useState("");
  const [pages, setPages] = useState([""]);
  const [found, setFound] = useState(null);
  const [at, setAt] = useState(0);
  const field = useRef(null);
  const before = pages[pages.length - 1];
  useEffect(() => repeat(700, async signal => {
    const page = await ask(`/v1/recordings${query({limit: LIMIT, text, status, tool, content, before})}`, {signal});
    setFound(page);
    for (let left = page.runs.filter(run => run.status === "running" || !SUMS.has(run.id)).map(run => run.id); left.length;) {
      const {totals} = await ask(`/v1/totals${query({runs: left.join(",")})}`, {signal});
      const known = Object.entries(totals);
      for (const [id, sum] of known) SUMS.set(id, sum);
      if (known.length) setSums(new Map(SUMS));
      left = known.length ? left.filter(id => !(id in totals)) : [];
    }
    return before === "" ? undefined : false;
  }), [text, status, tool, content, before]);
  const restart = act => {
    act();
    setPages([""]);
    setAt(0);
  };
  const runs = found ? found.runs : [];
  useKeys({
    j: () => setAt(Math.min(at + 1, runs.length - 1)),
    k: () => setAt(Math.max(at - 1, 0)),
    Enter: () => runs[at] && (location.hash = address`#/runs/${runs[at].id}`),
    "/": () => field.current.focus(),
  });
  return html`<h1>Runs</h1>
    <form class="tools" onSubmit=${event => event.preventDefault()}>
      <${Filter} label="Search" placeholder="name, entry or id" field=${field} onChange=${typed => restart(() => setText(typed))} />
      <label>Status <select value=${status} onChange=${event => restart(() => setStatus(event.currentTarget.value))}>
        ${STATUSES.map(one => html`<option value=${one}>${one || "any"}</option>`)}</select></label>
      <${Filter} label="Tool" placeholder="part of a name" onChange=${typed => restart(() => setTool(typed))} />
      <${Filter} label="Text" placeholder="in an event" onChange=${typed => restart(() => setContent(typed))} />
    </form>
    ${found === null ? html`<p>Loading…</p>` : html`
    <div class="wide" tabindex="0" role="region" aria-label="Runs"><table>
      <thead><tr><th scope="col">Run</th><th scope="col">Status</th><th scope="col">Started</th><th scope="col">Took</th><th scope="col">Tokens</th><th scope="col">Cost</th><th scope="col">Events</th><th scope="col">Id</th></tr></thead>
      <tbody>${runs.map((run, index) => html`<tr key=${run.id} class=${index === at ? "at" : ""}>
        <td><a href=${address`#/runs/${run.id}`}><bdi>${plain(run.name) || "(no name)"}</bdi></a>${run.sourceRun && html` <small>replay</small>`}</td>
        <td><${Status} value=${run.status} /></td><td>${when(run.startedAtMs)}</td><td>${span(run.durationMs)}</td>
        <td>${shown((sums.get(run.id)?.inputTokens || 0) + (sums.get(run.id)?.outputTokens || 0))}</td><td>${sums.get(run.id)?.cost?.toFixed(4) ?? ""}</td>
        <td>${shown(run.events)}</td><td><code>${run.id.slice(0, 13)}</code></td></tr>`)}</tbody></table></div>
    ${runs.length < LIMIT && found.next ? html`<p>${runs.length ? "" : "No runs match. "}${number(found.searched)} runs were searched; there are more.</p>`
      : runs.length === 0 && html`<p>${text || status || tool || content ? "No runs match." : html`No run yet. Record one: <code>antiphon run agent.py:main</code>`}</p>`}
    <p class="tools">
      <button disabled=${pages.length === 1} onClick=${() => { setPages(pages.slice(0, -1)); setAt(0); }}>Newer</button>
      <button disabled=${!found.next} onClick=${() => { setPages([...pages, found.next]); setFound({...found, next: ""}); setAt(0); }}>${runs.length < LIMIT && found.next ? "Search further" : "Older"}</button>
    </p>`}`;
}
