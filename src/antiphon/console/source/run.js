// One run: a time axis with model calls, tool calls and the reliability lane, the events below it, one event beside it.
import {html} from "htm/preact";
import {useEffect, useMemo, useRef, useState} from "preact/hooks";
import {address, ask, inlined, query, repeat} from "./api.js";
import {Command, LongList, Status, Value, cut, number, plain, span, useKeys, useSubject, when} from "./ui.js";

const LANES = ["Models", "Tools", "Reliability"];
const FOLD = 0.02;  // a pause longer than this part of the run is drawn shorter

const laneOf = line => {
  if (line.type === "decision") return 2;
  if (line.type !== "call.started") return -1;
  return line.kind === "llm" ? 0 : 1;
};

/** Lines with what belongs together: the end of each call at its start, and how deep it stands below others. */
function joined(lines) {
  const starts = new Map();
  for (const line of lines) if (line.type === "call.started" && line.call) starts.set(line.call, {line, end: null, notes: []});
  for (const line of lines) {
    const call = line.call && starts.get(line.call);
    if (!call) continue;
    if (line.type === "call.finished") call.end = line;
    else if (line.type === "decision") call.notes.push(line);
  }
  return starts;
}

/** Where a time stands on an axis of width 1; long pauses are folded. */
function axis(marks) {
  const times = [...new Set(marks.flatMap(mark => [mark.from, mark.to]))].sort((a, b) => a - b);
  if (times.length < 2) return {place: () => 0, folded: 0};
  const limit = (times[times.length - 1] - times[0]) * FOLD;
  const busy = marks.map(mark => [mark.from, mark.to]).sort((a, b) => a[0] - b[0]);
  const places = new Map([[times[0], 0]]);
  let at = 0, reach = times[0], next = 0, folded = 0;
  for (let index = 1; index < times.length; index++) {
    const from = times[index - 1], to = times[index];
    while (next < busy.length && busy[next][0] <= from) reach = Math.max(reach, busy[next++][1]);
    const idle = reach <= from && to - from > limit;
    if (idle) folded += to - from - limit;
    at += idle ? limit : to - from;
    places.set(to, at);
  }
  return {place: time => (places.get(time) || 0) / (at || 1), folded};
}

function Axis({lines, calls, onPick, chosen}) {
  const canvas = useRef(null);
  const [width, setWidth] = useState(800);
  const marks = useMemo(() => {
    const found = [];
    lines.forEach((line, index) => {
      const lane = laneOf(line);
      if (lane < 0) return;
      const end = line.type === "call.started" ? calls.get(line.call)?.end : null;
      const bad = end && end.outcome && end.outcome !== "ok";
      found.push({index, lane, from: line.atMs, to: Math.max(line.atMs, end ? end.atMs : line.atMs), bad, idle: end?.notSent});
      if (end?.notSent) found.push({index, lane: 2, from: end.atMs, to: end.atMs, idle: true});
    });
    return found;
  }, [lines.length, calls]);
  const scale = useMemo(() => axis(marks), [marks]);
  useEffect(() => {
    const watch = new ResizeObserver(() => setWidth(canvas.current?.clientWidth || 800));
    watch.observe(canvas.current);
    return () => watch.disconnect();
  }, []);
  const boxes = marks.map(mark => {
    const left = 4 + scale.place(mark.from) * (width - 12);
    return {...mark, left, wide: Math.max(4, scale.place(mark.to) * (width - 12) + 4 - left), top: 6 + mark.lane * 28};
  });
  useEffect(() => {
    const element = canvas.current, dense = devicePixelRatio || 1;
    element.width = width * dense;
    element.height = 90 * dense;
    const pen = element.getContext("2d"), look = getComputedStyle(document.documentElement);
    const color = name => look.getPropertyValue(name).trim();
    const colors = [color("--model"), color("--tool"), color("--guard")], bad = color("--bad"), edge = color("--text");
    pen.scale(dense, dense);
    pen.fillStyle = color("--rule");
    for (let lane = 0; lane < 3; lane++) pen.fillRect(0, 17 + lane * 28, width, 1);
    for (const box of boxes) {
      pen.globalAlpha = box.idle && box.lane < 2 ? 0.45 : 1;
      pen.fillStyle = box.bad ? bad : colors[box.lane];
      pen.fillRect(box.left, box.top, box.wide, 22);
      if (box.index === chosen) {
        pen.strokeStyle = edge;
        pen.lineWidth = 2;
        pen.strokeRect(box.left, box.top, box.wide, 22);
      }
    }
  });
  const pick = event => {
    const frame = canvas.current.getBoundingClientRect();
    const x = event.clientX - frame.left, y = event.clientY - frame.top;
    const near = boxes.filter(box => y >= box.top - 3 && y <= box.top + 25)
      .map(box => ({box, far: Math.max(box.left - x, x - box.left - box.wide, 0)})).sort((a, b) => a.far - b.far)[0];
    if (near && near.far < 12) onPick(near.box.index);
  };
  const counts = LANES.map((name, lane) => `${number(marks.filter(mark => mark.lane === lane).length)} in ${name}`).join(", ");
  return html`<div class="axis"><div class="lanes" aria-hidden="true">${LANES.map(name => html`<span>${name}</span>`)}</div>
    <canvas ref=${canvas} role="img" aria-label=${`Time axis: ${counts}. The list below has every event.`} onClick=${pick}></canvas></div>
    ${scale.folded > 0 && html`<p class="note">Pauses are folded: ${span(scale.folded)} are not drawn.</p>`}`;
}

const words = (line, call) => {
  const end = line.type === "call.started" ? call?.end : line;
  if (line.type === "call.started" && !end) return "open";
  return plain([end.notSent && "not sent", end.outcome, end.attempts > 1 && `${end.attempts} attempts`, end.text].filter(Boolean).join(" · "));
};

function Detail({run, line, call}) {
  const [events, setEvents] = useState(null);
  const [failed, setFailed] = useState("");
  const [raw, setRaw] = useState(false);
  const numbers = call ? [call.line.seq, call.end?.seq] : [line.seq];
  useEffect(() => {
    const control = new AbortController();
    setEvents(null);
    setFailed("");
    Promise.all(numbers.filter(seq => seq != null).map(seq => ask(address`/v1/recordings/${run}/events/${seq}`, {signal: control.signal})))
      .then(setEvents, error => control.signal.aborted || setFailed(error.message));
    return () => control.abort();
  }, [run, ...numbers]);
  if (failed) return html`<p role="alert">${plain(failed)}</p><${Command} text=${`antiphon show ${run} --event ${numbers[0]}`} />`;
  if (!events) return html`<p>Loading…</p>`;
  const [start, end] = events;
  const asked = start.payload.providerRequest ?? start.payload.request ?? start.payload.arguments;
  const last = end || start;
  const reason = call?.end?.notSent;
  return html`<h2><bdi>${plain(line.name || call?.line.name || line.type)}</bdi></h2>
    <p>Event ${numbers[0]}${end ? ` to ${numbers[1]}` : ""} · ${when((call?.line || line).atMs)} · ${words(call ? call.line : line, call)}</p>
    ${reason && html`<section class="why"><h3>Why was this not sent?</h3><p>${plain(reason)}</p></section>`}
    ${call && call.notes.length > 0 && html`<h3>Reliability</h3><ol>${call.notes.map(note => html`<li>${plain(`${note.name}: ${note.text}`)}</li>`)}</ol>`}
    ${asked !== undefined && html`<h3>${call?.line.kind === "llm" ? "What the model saw" : "Arguments"}</h3><${Value} value=${asked} label="Arguments" />`}
    ${last.payload.value !== undefined && html`<h3>Result</h3><${Value} value=${last.payload.value} label="Result" />`}
    ${last.payload.error != null && html`<h3>Error</h3><${Value} value=${last.payload.error} label="Error" />`}
    ${asked === undefined && last.payload.value === undefined && last.payload.error == null && html`<h3>Content</h3><${Value} value=${start.payload} label="Content" />`}
    <p><button aria-expanded=${raw} onClick=${() => setRaw(!raw)}>Raw</button></p>
    ${raw && html`<${Value} value=${events} label="Raw events" />`}
    <${Command} text=${`antiphon show ${run} --event ${numbers[0]}`} />`;
}

/** What the run was given and what came of it. */
function Ends({run, lines}) {
  const ends = [lines.find(one => one.type === "run.started"), lines.findLast(one => one.type === "run.finished")];
  const [found, setFound] = useState([]);
  const numbers = ends.map(one => one?.seq);
  useEffect(() => {
    const control = new AbortController();
    Promise.all(numbers.map(seq => seq == null ? null : ask(address`/v1/recordings/${run}/events/${seq}`, {signal: control.signal}).catch(() => null)))
      .then(answers => control.signal.aborted || setFound(answers));
    return () => control.abort();
  }, [run, ...numbers]);
  const [start, end] = found;
  return [["Input", start?.payload.input], ["Output", end?.payload.output], ["Error", end?.payload.error]]
    .map(([title, value]) => value != null && html`<h3>${title}</h3><${Value} value=${value} label=${title} />`);
}

export function Run({id}) {
  const [run, setRun] = useState(null);
  const [lines, setLines] = useState([]);
  const [at, setAt] = useState(-1);
  const [missing, setMissing] = useState("");
  const held = useRef([]);
  useEffect(() => {
    held.current = [];
    setLines([]);
    setAt(-1);
    setMissing("");
    return repeat(500, async signal => {
      try {
        setRun(await ask(address`/v1/recordings/${id}`, {signal}));
        for (;;) {
          const found = await ask(address`/v1/recordings/${id}/events` + query({start: held.current.length ? held.current[held.current.length - 1].seq + 1 : 0, limit: 2000}), {signal});
          if (found.events.length) setLines(held.current = held.current.concat(found.events));
          if (found.isComplete) {
            setRun(await ask(address`/v1/recordings/${id}`, {signal}));
            return false;
          }
          if (found.events.length < 2000) return;
        }
      } catch (failed) {
        if (failed.status === 404) setMissing(failed.message);
        throw failed;
      }
    });
  }, [id]);
  const calls = useMemo(() => joined(lines), [lines]);
  const move = step => setAt(now => Math.max(0, Math.min(lines.length - 1, now + step)));
  useKeys({j: () => move(1), k: () => move(-1), Escape: () => setAt(-1)});
  useSubject(run ? `${run.name} ${id.slice(0, 13)}`.trim() : id.slice(0, 13));
  if (missing) return html`<h1>Run</h1><p role="alert">${plain(missing)}</p>`;
  if (!run) return html`<h1>Run</h1><p>Loading…</p>`;
  const line = lines[at], begun = run.startedAtMs;
  return html`<h1><bdi>${plain(run.name)}</bdi> <${Status} value=${run.status} /></h1>
    <p class="note">${when(begun)} · ${span(run.durationMs) || "going on"} · <span id="count">${number(lines.length)}</span> events · <code>${run.id}</code>
      ${run.sourceRun && html` · replay of ${inlined ? run.sourceRun : html`<a href=${address`#/runs/${run.sourceRun}`}>${run.sourceRun.slice(0, 13)}</a>`}`}
      ${!inlined && html` · <a href=${run.sourceRun ? address`#/compare/${run.sourceRun}/${id}` : address`#/compare/${id}`}>compare</a>`}</p>
    <${Axis} lines=${lines} calls=${calls} chosen=${at} onPick=${setAt} />
    <div class="split"><${LongList} items=${lines} height=${28} selected=${at} onSelect=${setAt} label="Events" row=${one => html`
        <span class="seq">${one.seq}</span><span class="time">+${span(one.atMs - begun)}</span>
        <span class=${`kind ${["model", "tool", "guard"][laneOf(one)] || ""}`}>${cut(plain(one.kind || one.type), 14)}</span>
        <bdi class="name">${cut(plain(one.name || calls.get(one.call)?.line.name || (one.kind ? one.type : "")), 48)}</bdi><bdi class="rest">${cut(words(one, calls.get(one.call)), 160)}</bdi>`} />
      <aside aria-label="Event" aria-live="polite">${line ? html`<${Detail} run=${id} line=${line} call=${calls.get(line.call)} />`
        : html`<p>Choose an event: click it, or press <kbd>j</kbd>.</p><${Ends} run=${id} lines=${lines} /><${Command} text=${`antiphon show ${id}`} />`}</aside></div>`;
}
