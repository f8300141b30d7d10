// Golden tests: the last verdict of each, recording and replay side by side, and a new recording accepted with the difference in view.
import {html} from "htm/preact";
import {useEffect, useState} from "preact/hooks";
import {address, ask, me, repeat} from "./api.js";
import {Asking, Reason} from "./inbox.js";
import {Badge, Report} from "./report.js";
import {Command, number, plain, span, useKeys, useSubject, when} from "./ui.js";

export const failing = one => one.status === "fail" || one.status === "error";
const Verdict = ({one}) => one.status === "changed" ? html`<span class="note">changed, not tested since</span>` : html`<${Badge} good=${one.status === "pass"} text=${one.status} />`;
const reason = one => one.status === "changed" ? "" : one.reasons[0] || "";

export function GoldenTests() {
  const [found, setFound] = useState(null);
  const [at, setAt] = useState(0);
  useEffect(() => repeat(2000, async signal => setFound((await ask("/v1/golden", {signal})).tests)), []);
  const many = found || [];
  useKeys({
    j: () => setAt(Math.min(at + 1, many.length - 1)),
    k: () => setAt(Math.max(at - 1, 0)),
    Enter: () => many[at] && (location.hash = address`#/golden/${many[at].id}`),
  });
  const failed = many.filter(failing).length;
  return html`<h1>Golden</h1>
    ${found === null ? html`<p>Loading…</p>` : many.length === 0 ? html`<p>No golden test has run in this project yet.</p><${Command} text="antiphon test golden/" />` : html`
    <p role="status">${failed ? `${number(failed)} of ${number(many.length)} golden tests failed.` : `${number(many.length)} golden tests, none failed.`}</p>
    <div class="wide" tabindex="0" role="region" aria-label="Golden tests"><table>
      <thead><tr><th scope="col">Golden test</th><th scope="col">Verdict</th><th scope="col">When</th><th scope="col">Why</th><th scope="col">ARS</th><th scope="col">Took</th></tr></thead>
      <tbody>${many.map((one, index) => html`<tr key=${one.id} class=${index === at ? "at" : ""}>
        <td><a href=${address`#/golden/${one.id}`}><bdi>${plain(one.path)}</bdi></a></td><td><${Verdict} one=${one} /></td><td>${when(one.atMs)}</td>
        <td class="text"><bdi>${plain(reason(one))}</bdi></td><td>${one.ars?.toFixed(3) ?? ""}</td><td>${one.seconds ? span(one.seconds * 1000) : ""}</td></tr>`)}</tbody></table></div>`}`;
}

function Accept({test, onDone, onClose}) {
  const [run, setRun] = useState(test.candidates[0].id);
  const [said, setSaid] = useState("");
  const plan = {
    path: address`/v1/golden/${test.id}`, verb: "Accept this recording", body: {run, reason: said},
    command: test.commands.accept.replace("RUN", () => run),
    said: tried => tried.equal ? "The run is equal to the recording." : "The run would replace the recording; this is what differs.",
    confirmed: tried => ({digest: tried.digest}),
  };
  return html`<${Asking} title="Accept a new recording?" plan=${plan} onDone=${onDone} onClose=${onClose}>
    <p><label>Run <select value=${run} onChange=${event => setRun(event.currentTarget.value)}>
      ${test.candidates.map(one => html`<option value=${one.id}>${when(one.startedAtMs)} · ${one.status} · ${one.id.slice(0, 13)}</option>`)}</select></label></p>
    <${Reason} label="Reason, for the audit log" value=${said} onChange=${setSaid} /><//>`;
}

export function GoldenTest({id}) {
  const [found, setFound] = useState(null);
  const [asking, setAsking] = useState(false);
  const [told, setTold] = useState("");
  const [turn, setTurn] = useState(0);
  useEffect(() => repeat(2000, async signal => setFound(await ask(address`/v1/golden/${id}`, {signal}))), [id, turn]);
  useKeys({Escape: () => (location.hash = "#/golden")});
  useSubject(found?.path || "");
  if (!found) return html`<h1>Golden</h1><p>Loading…</p>`;
  const admin = me.value?.role === "admin", {commands, candidates} = found;
  const done = result => {
    setTold(`Run ${result.run} is the recording now. Test it: ${commands.test}`);
    setAsking(false);
    setTurn(turn + 1);
  };
  return html`${found.view ? html`<p class="note"><bdi>${plain(found.path)}</bdi> · <${Verdict} one=${found} /> · ${when(found.atMs)}</p><${Report} view=${found.view} />` : html`
      <h1><bdi>${plain(found.path)}</bdi> <${Verdict} one=${found} /></h1><p class="note">${when(found.atMs)}${found.ars == null ? "" : ` · ARS ${found.ars.toFixed(3)}`}</p>
      ${found.reasons.length > 0 && html`<ul>${found.reasons.map(text => html`<li><bdi>${plain(text)}</bdi></li>`)}</ul>`}`}
    <section class="group" aria-label="What to do"><h2>What to do</h2>${told && html`<p role="status">${plain(told)}</p>`}
      ${found.status === "changed" && html`<p>The artifact changed after this verdict: test it again.</p>`}
      <${Command} text=${commands.test} />
      ${failing(found) && html`<p>If the new behaviour is right, ${commands.record ? "record it and accept that run as the golden recording:" : "accept it as the golden recording:"}</p>
        ${commands.record && html`<${Command} text=${commands.record} />`}${commands.accept && html`<${Command} text=${commands.accept} />`}`}
      ${admin && candidates.length > 0 && html`<p><button onClick=${() => setAsking(true)}>Accept a run as the recording…</button></p>`}</section>
    ${asking && html`<${Accept} test=${found} onDone=${done} onClose=${() => setAsking(false)} />`}`;
}
