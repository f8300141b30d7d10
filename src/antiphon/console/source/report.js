// A view: what a replay, a comparison, golden runs or a matrix found. What it shows is decided where the view is made.
import {html} from "htm/preact";
import {useState} from "preact/hooks";
import {plain} from "./ui.js";

const Change = ({change}) => html`<pre>${change.map(([op, text]) =>
  op === "=" ? plain(text) : op === "-" ? html`<del>${plain(text)}</del>` : html`<ins>${plain(text)}</ins>`)}</pre>`;

const Fields = ({rows}) => html`<table class="fields"><tbody>${rows.map(row => html`<tr>
  <th scope="row"><code>${plain(row.path)}</code></th><td><${Change} change=${row.change} /></td></tr>`)}</tbody></table>`;

const Marks = ({marks}) => (marks || []).map(mark => html`<span class=${mark.alarm ? "mark alarm" : "mark"}>${plain(mark.text)}</span> `);

function Call({call, side, gap, open}) {
  if (!call) return html`<div class="call gap">${gap}</div>`;
  return html`<div class="call"><div class="top"><span class="side note">${side}</span> <span class="note">#${call.place}</span> <b><bdi>${plain(call.name)}</bdi></b> <${Marks} marks=${call.marks} /> <span class="note">${call.facts}</span></div>
    ${call.parts.length > 0 && html`<details open=${open}><summary>arguments and result</summary>
      ${call.parts.map(([title, text]) => html`<p class="note">${title}</p><pre>${plain(text)}</pre>`)}</details>`}</div>`;
}

/** Parts behind a line; they exist while it is open. */
function More({part}) {
  const [open, setOpen] = useState(false);
  return html`<details open=${open} onToggle=${event => setOpen(event.currentTarget.open)}><summary>${plain(part.title)}</summary>
    ${open && html`<${Parts} parts=${part.parts} />`}</details>`;
}

const Ring = ({part}) => html`<svg class="ring" viewBox="0 0 100 100" role="img" aria-label=${`${part.label} ${part.value}`}>
  <circle class="track" cx="50" cy="50" r="42" /><circle class=${part.grade} cx="50" cy="50" r="42" pathLength="100"
    stroke-dasharray=${`${part.share * 100} 100`} transform="rotate(-90 50 50)" /><text x="50" y="57">${part.value}</text></svg>`;

const Bar = ({bar}) => html`<div class="part"><span>${plain(bar.label)}</span>
  <svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${plain(`${bar.label} ${bar.value}`)}>
    <rect class="track" width="100" height="8" /><rect class=${bar.grade} width=${bar.share * 100} height="8" /></svg><span>${bar.value}</span></div>`;

const KINDS = {
  section: part => html`<section class=${`card ${part.look}`}><h2>${plain(part.title)}</h2><${Parts} parts=${part.parts} /></section>`,
  group: part => html`<div class="group"><${Parts} parts=${part.parts} /></div>`,
  text: part => html`<p class="note">${plain(part.text)}</p>`,
  lead: part => html`<p class="lead">${part.name && html`<b><bdi>${plain(part.name)}</bdi></b> `}${plain(part.text)}</p>`,
  fields: part => html`<${Fields} rows=${part.rows} />`,
  list: part => html`<ul>${part.items.map(item => html`<li>${plain(item)}</li>`)}</ul>`,
  more: part => html`<${More} part=${part} />`,
  score: part => html`<section class="card"><h2>${part.label}</h2><div class="score"><${Ring} part=${part} />
    <div class="parts">${part.bars.map(bar => html`<${Bar} bar=${bar} />`)}<p class="note">${plain(part.note)}</p></div></div></section>`,
  tiles: part => html`<section class="card"><h2>${part.title}</h2><div class="tiles">${part.tiles.map(tile => html`<div class=${tile.alarm ? "tile alarm" : "tile"}>
    <b>${plain(tile.value)}</b><span>${plain(tile.label)}</span>${tile.note && html`<small>${plain(tile.note)}</small>`}</div>`)}</div></section>`,
  sides: part => html`<div class="pair heads">${part.names.map(name => html`<b>${name}</b>`)}</div>`,
  row: part => html`<div class=${`pair ${part.state}`}>
    <${Call} call=${part.left} side="Recorded" gap="not in the recording" open=${part.state !== "equal"} />
    <${Call} call=${part.right} side="Replayed" gap="not made again" open=${part.state !== "equal"} />
    ${part.fields.length > 0 && html`<div class="full"><${Fields} rows=${part.fields} /></div>`}
    ${part.note && html`<p class="note full">${part.note}</p>`}</div>`,
  result: part => html`<section class="card"><div class="top"><${Badge} good=${part.good} text=${part.status} /> <b><bdi>${plain(part.path)}</bdi></b> <span class="note">${part.facts}</span></div>${part.reasons.length > 0 && html`<ul>${part.reasons.map(reason => html`<li>${plain(reason)}</li>`)}</ul>`}
    <${Parts} parts=${part.parts} /></section>`,
  table: part => html`<div class="wide" tabindex="0" role="region" aria-label="Table"><table><thead><tr>${part.head.map(name => html`<th scope="col">${plain(name)}</th>`)}</tr></thead>
    <tbody>${part.rows.map(row => html`<tr>${row.map(cell => html`<td class="text"><${Marks} marks=${cell.marks} />${plain(cell.text)}</td>`)}</tr>`)}</tbody></table></div>`,
};

/** A verdict; one that is neither good nor bad has no `good`. */
export const Badge = ({good, text}) => html`<span class=${`badge ${good == null ? "" : good ? "good" : "bad"}`}>${plain(text)}</span>`;
export const Parts = ({parts}) => parts.map(part => KINDS[part.kind]?.(part));

export const Report = ({view, children}) => html`<div class="report"><h1><bdi>${plain(view.title)}</bdi> ${view.badge && html`<${Badge} good=${view.good} text=${view.badge} />`}</h1>
  ${view.line && html`<p class="note">${plain(view.line)}</p>`}${children}${view.note && html`<p class="note">${plain(view.note)}</p>`}
  ${view.reasons.length > 0 && html`<ul>${view.reasons.map(reason => html`<li>${plain(reason)}</li>`)}</ul>`}
  <${Parts} parts=${view.parts} /></div>`;
