// Two runs side by side, or a recording beside its replay: the first divergence on top.
import {html} from "htm/preact";
import {useEffect, useRef, useState} from "preact/hooks";
import {address, ask} from "./api.js";
import {Report} from "./report.js";
import {Command, number, plain, useKeys, useSubject} from "./ui.js";

function Choose({id, other}) {
  const [runs, setRuns] = useState([]);
  const left = useRef(null), right = useRef(null);
  useEffect(() => {
    const control = new AbortController();
    ask("/v1/recordings?limit=100", {signal: control.signal}).then(found => setRuns(found.runs), () => {});
    return () => control.abort();
  }, []);
  useKeys({"/": () => left.current.focus()});
  const [failed, setFailed] = useState("");
  const go = async event => {
    event.preventDefault();
    setFailed("");
    const [a, b] = [left, right].map(field => field.current.value.trim());
    if (!a) return;
    try {
      const source = b || (await ask(address`/v1/recordings/${a}`)).sourceRun;
      if (source) location.hash = b ? address`#/compare/${a}/${b}` : address`#/compare/${source}/${a}`;
      else setFailed("This run is not a replay: choose a run to compare it with.");
    } catch (error) {
      setFailed(error.message);
    }
  };
  return html`<form class="tools" onSubmit=${go}>
    <label>Run <input ref=${left} list="runs" defaultValue=${id} required autocomplete="off" /></label>
    <label>compared with <input ref=${right} list="runs" defaultValue=${other} autocomplete="off" placeholder="another run" /></label>
    <datalist id="runs">${runs.map(run => html`<option value=${run.id}>${plain(run.name)} · ${run.sourceRun ? "replay · " : ""}${run.status}</option>`)}</datalist>
    <button>Compare</button></form>${failed && html`<p role="alert">${plain(failed)}</p>`}`;
}

export function Compare({id, other}) {
  const [every, setEvery] = useState(false);
  const [found, setFound] = useState(null);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    if (!id || !other) return;
    const control = new AbortController();
    setFound(null);
    setFailed("");
    ask(address`/v1/recordings/${id}/compare/${other}` + (every ? "?all=true" : ""), {signal: control.signal})
      .then(setFound, error => control.signal.aborted || setFailed(error.message));
    return () => control.abort();
  }, [id, other, every]);
  const asked = id && other;
  useSubject(asked ? `${id.slice(0, 13)} vs. ${other.slice(0, 13)}` : "");
  return html`${!found && html`<h1>Compare</h1>`}<${Choose} id=${id} other=${other} />
    ${!asked && html`<p class="note">Choose two runs, or one replay to compare it with its recording.</p>`}
    ${failed && html`<p role="alert">${plain(failed)}</p>`}
    ${asked && !found && !failed && html`<p>Loading…</p>`}
    ${found && html`<p><label><input type="checkbox" checked=${every} onChange=${event => setEvery(event.currentTarget.checked)} /> Show ids and times</label>
        ${found.hiddenIds > 0 && html` <span class="note">${number(found.hiddenIds)} that differ in every response are hidden.</span>`}</p>
      <p class="note"><a href=${address`#/runs/${id}`}>${id.slice(0, 13)}</a> vs. <a href=${address`#/runs/${other}`}>${other.slice(0, 13)}</a></p>
      <${Report} view=${found.view} /><${Command} text=${`antiphon diff ${id} ${other}${every ? " --all" : ""}`} />`}`;
}
