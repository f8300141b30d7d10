// How the tools did over time, what outages cost, and what tighter limits would have sent.
import {html} from "htm/preact";
import {useEffect, useRef, useState} from "preact/hooks";
import uPlot from "uplot";
import {ask, query, repeat} from "./api.js";
import {number, plain, plural, span, when} from "./ui.js";

const look = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Times of day, and the date where it begins or changes; only dates where the marks are days apart. */
const times = (_, marks, axis, space, step) => {
  let date = "";
  return marks.map(mark => {
    const [day, time] = when(mark * 1000).split(" "), before = date;
    date = day;
    if (step >= 86400) return day;
    return (step < 60 ? time : time.slice(0, 5)) + (day === before ? "" : `\n${day}`);
  });
};

/** A plot over time; nothing is drawn where there is no value. The table below it has the numbers; the label says what it shows. */
function Plot({title, at, lines, unit}) {
  const box = useRef(null);
  const plot = useRef(null);
  const [dark, setDark] = useState(0);
  const data = [at.map(ms => ms / 1000), ...lines.map(line => line.values)];
  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(now => now + 1);
    scheme.addEventListener("change", changed);
    return () => scheme.removeEventListener("change", changed);
  }, []);
  useEffect(() => {
    const axis = {stroke: look("--soft"), grid: {stroke: look("--rule"), width: 1}, ticks: {stroke: look("--rule"), width: 1}};
    plot.current = new uPlot({
      width: box.current.clientWidth || 300, height: 190, legend: {show: false}, cursor: {show: false}, pxAlign: 0,
      axes: [{...axis, space: 84, values: times}, {...axis, size: 64, values: (_, marks) => marks.map(unit)}],
      series: [{}, ...lines.map(line => ({label: line.name, stroke: look(line.color), width: 2, dash: line.dash, points: {show: !!line.points, size: 6, fill: look(line.color)}}))],
    }, data, box.current);
    const watch = new ResizeObserver(() => box.current && plot.current?.setSize({width: box.current.clientWidth, height: 190}));
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [dark]);
  useEffect(() => plot.current?.setData(data), [JSON.stringify(data)]);
  const most = lines.map(line => `${line.name} at most ${unit(Math.max(0, ...line.values.filter(value => value != null)))}`).join(", ");
  return html`<figure><figcaption>${title}: ${lines.map(line => html`<span class="key"><span class=${`swatch ${line.dash ? "dash" : ""}`} style=${{borderColor: `var(${line.color})`}}></span> ${line.name}</span>`)}</figcaption>
    <div ref=${box} role="img" aria-label=${`${title} over time: ${most}.`}></div></figure>`;
}

const LIMITS = [
  ["consecutive", "Failures in a row that open a breaker", "5"], ["ratePercent", "Failing part that opens it, %", "30"], ["minCalls", "Attempts before that part counts", "10"],
  ["cooldownMs", "Stays open, ms", "30000"], ["maxAttempts", "Attempts of one call", "2"],
];
const ROWS = [["sent", "Calls sent"], ["attempts", "Attempts"], ["retries", "Retries"], ["amplification", "Attempts per call"], ["refused", "Calls refused by a breaker"], ["leastTokens", "Least retry budget left"]];

function WhatIf() {
  const [limits, setLimits] = useState({});
  const [found, setFound] = useState(null);
  const [failed, setFailed] = useState("");
  const send = event => {
    event.preventDefault();
    ask(`/v1/what-if${query(limits)}`).then(answer => { setFound(answer); setFailed(""); }, error => setFailed(error.message));
  };
  const before = found?.before, after = found?.after;
  return html`<section class="group" aria-label="What if"><h2>What if the limits had been tighter?</h2>
    <p class="note">The recorded attempts go through the rules that decide live calls. Looser limits would need attempts that never happened: they are left as they were.</p>
    <form onSubmit=${send} class="limits">${LIMITS.map(([name, label, hint]) => html`<label>${label} <input type="number" min="1" inputmode="numeric" placeholder=${hint} value=${limits[name] || ""}
      onInput=${event => setLimits({...limits, [name]: event.currentTarget.value})} /></label>`)}<button>Try</button></form>
    ${failed && html`<p role="alert">${plain(failed)}</p>`}
    ${found && html`<div role="status">
      ${found.looser.length > 0 && html`<p>Looser than recorded, so left as they were: ${plain(found.looser.join(", "))}.</p>`}
      ${after.missing > 0 && html`<p>${number(after.missing)} calls that a breaker refused would have been let through by these limits. How they would have ended is not recorded, so the numbers are a lower bound.</p>`}
      ${before.attempts !== found.recordedAttempts && html`<p>The recording has ${number(found.recordedAttempts)} attempts: it was made under other limits than this host knows for its tools.</p>`}</div>
    <div class="wide" tabindex="0" role="region" aria-label="Before and after"><table><thead><tr><th scope="col"></th><th scope="col">As recorded</th><th scope="col">With these limits</th></tr></thead>
      <tbody>${ROWS.map(([name, label]) => html`<tr><th scope="row">${label}</th><td>${before[name] == null ? "" : number(before[name])}</td><td>${after[name] == null ? "" : number(after[name])}</td></tr>`)}
        <tr><th scope="row">Breakers opened</th><td>${before.opened.length}</td><td>${after.opened.length}</td></tr></tbody></table></div>
    ${after.opened.length > 0 && html`<ul>${after.opened.slice(0, 20).map(one => html`<li>${when(one.atMs)} · <bdi>${plain(one.tool)}</bdi> · ${plain(one.reason)}</li>`)}</ul>`}`}</section>`;
}

export function Health() {
  const [tool, setTool] = useState("");
  const [found, setFound] = useState(null);
  useEffect(() => repeat(700, async signal => setFound(await ask(`/v1/health${query({tool})}`, {signal}))), [tool]);
  if (!found) return html`<h1>Health</h1><p>Loading…</p>`;
  const {series, looked, claims, store} = found;
  const open = found.breakers.filter(one => one.state !== "CLOSED");
  const flying = (claims.inflight || 0) + (claims.stale || 0);
  const unknown = ["unknown", "unknown_1h", "unknown_1d"].reduce((sum, name) => sum + (claims[name] || 0), 0);
  return html`<h1>Health</h1>
    <dl class="facts"><dt>Breakers</dt><dd>${open.length ? html`<a href="#/inbox">${number(open.length)} open</a>` : "all closed"}</dd>
      <dt>Leases</dt><dd>${number(flying)} in flight${claims.stale ? `, ${number(claims.stale)} past their lease` : ""}</dd><dt>Unknown outcomes</dt><dd>${unknown ? html`<a href="#/inbox">${number(unknown)}</a>` : "none"}</dd>
      <dt>Store</dt><dd>${plain([store.store, store.version].filter(Boolean).join(" "))}${store.latencyMs != null ? `, answered in ${store.latencyMs.toFixed(1)} ms` : ""}${store.durable === false ? ", not durable" : ""}</dd>
      <dt>Looked at</dt><dd>${plural(looked.calls, "call")} of the ${looked.isWhole ? "" : "newest "}${plural(looked.runs, "run")}</dd></dl>
    <form class="tools" onSubmit=${event => event.preventDefault()}><label>Plots of <select value=${tool} onChange=${event => setTool(event.currentTarget.value)}>
      <option value="">every tool and model</option>${found.tools.map(one => html`<option value=${one.name}>${plain(one.name).slice(0, 60)}</option>`)}</select></label></form>
    ${series.atMs.length > 0 && html`<div class="plots">
      <${Plot} title="Latency of attempts" at=${series.atMs} unit=${span} lines=${[{name: "median", values: series.p50Ms, color: "--tool", points: true}, {name: "95 %", values: series.p95Ms, color: "--model", dash: [6, 4], points: true}]} />
      <${Plot} title=${`Number per ${span(found.stepMs)}`} at=${series.atMs} unit=${number} lines=${[{name: "attempts", values: series.attempts, color: "--link"}, {name: "retries", values: series.retries, color: "--guard", dash: [6, 4]}, {name: "failed", values: series.failed, color: "--bad", dash: [2, 3]}]} /></div>`}
    ${found.tools.length === 0 ? html`<p>No call has been recorded yet.</p>` : html`
    <div class="wide" tabindex="0" role="region" aria-label="Tools"><table><thead><tr><th scope="col">Tool or model</th><th scope="col">Calls</th><th scope="col">Sent</th><th scope="col">Suppressed</th><th scope="col">Refused</th><th scope="col">Attempts per call</th><th scope="col">In outages</th><th scope="col">Failed</th><th scope="col">Median</th><th scope="col">95 %</th></tr></thead>
      <tbody>${found.tools.map(one => html`<tr><td><bdi>${plain(one.name || one.kind)}</bdi></td><td>${number(one.calls)}</td><td>${number(one.sent)}</td><td>${number(one.suppressed)}</td><td>${number(one.refused)}</td>
        <td>${one.amplification ?? ""}</td><td>${one.outageAmplification ?? ""}</td><td>${number(one.failed)}</td><td>${span(one.p50Ms)}</td><td>${span(one.p95Ms)}</td></tr>`)}</tbody></table></div>`}
    <${WhatIf} />`;
}
