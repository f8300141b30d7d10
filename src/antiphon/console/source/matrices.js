// Matrices of runs and models: how far each is, what it says of each variant, and the runs that part.
import {html} from "htm/preact";
import {useEffect, useState} from "preact/hooks";
import {address, ask, repeat} from "./api.js";
import {Badge, Report} from "./report.js";
import {Command, number, plain, plural, useKeys, useSubject, when} from "./ui.js";

const points = one => `${one.difference >= 0 ? "+" : ""}${(one.difference * 100).toFixed(1)} points in ${plural(one.pairs, "pair")}`;
const Progress = ({one}) => html`<progress value=${one.done} max=${one.isComplete ? one.done : one.total} aria-label="Cells done"></progress> ${one.isComplete ? plural(one.done, "cell") : `${number(one.done)} of at most ${number(one.total)} cells`}`;
const GOOD = {"not worse": true, worse: false};  // undecided is neither
const Verdicts = ({one}) => one.verdicts.length === 0 ? html`<span class="note">nothing to compare with</span>` :
  one.verdicts.map(found => html`<div key=${found.variant}><${Badge} good=${GOOD[found.verdict]} text=${found.verdict} /> <bdi>${plain(found.variant)}</bdi> <small>${points(found)}</small></div>`);

export function Matrices() {
  const [found, setFound] = useState(null);
  const [at, setAt] = useState(0);
  useEffect(() => repeat(2000, async signal => setFound((await ask("/v1/matrices", {signal})).matrices)), []);
  const many = found || [];
  useKeys({
    j: () => setAt(Math.min(at + 1, many.length - 1)),
    k: () => setAt(Math.max(at - 1, 0)),
    Enter: () => many[at] && (location.hash = address`#/matrices/${many[at].id}`),
  });
  return html`<h1>Matrices</h1>
    ${found === null ? html`<p>Loading…</p>` : many.length === 0 ? html`<p>No matrix was started from this machine yet.</p>
      <${Command} text="antiphon matrix --select 'name=main' --model NEW --baseline --estimate" />` : html`
    <div class="wide" tabindex="0" role="region" aria-label="Matrices"><table>
      <thead><tr><th scope="col">Matrix</th><th scope="col">Started</th><th scope="col">Runs</th><th scope="col">Progress</th><th scope="col">Verdict vs. the first variant</th></tr></thead>
      <tbody>${many.map((one, index) => html`<tr key=${one.id} class=${index === at ? "at" : ""}>
        <td><a href=${address`#/matrices/${one.id}`}><code>${one.id.slice(0, 13)}</code></a></td><td>${when(one.createdAtMs)}</td>
        <td>${number(one.runs)}</td><td><${Progress} one=${one} /></td><td><${Verdicts} one=${one} /></td></tr>`)}</tbody></table></div>`}`;
}

export function Matrix({id}) {
  const [found, setFound] = useState(null);
  useEffect(() => repeat(2000, async signal => {
    const one = await ask(address`/v1/matrices/${id}`, {signal});
    setFound(one);
    return one.isComplete ? false : undefined;
  }), [id]);
  useSubject(found?.view.title || "");
  if (!found) return html`<h1>Matrix</h1><p>Loading…</p>`;
  return html`<${Report} view=${found.view}><p><${Progress} one=${found} /></p>
    ${!found.isComplete && html`<${Command} text=${`antiphon matrix --resume ${found.id}`} />`}<//>`;
}
