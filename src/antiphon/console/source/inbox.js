// What waits for a person, and the one action for each. Every action is tried first: the dry run is the question.
import {html} from "htm/preact";
import {useEffect, useRef, useState} from "preact/hooks";
import {address, ask, exactly, me, repeat} from "./api.js";
import {Report} from "./report.js";
import {Command, number, plain, plural, span, useKeys, when} from "./ui.js";

const ADMIN = "/v1/admin/tool-reliability";
const PART = 50, MOST = 1000;
export const quoted = text => /^[\w./:@-]+$/.test(text) ? text : `'${String(text).replace(/'/g, "'\\''")}'`;
const why = reason => reason ? ` --reason ${quoted(reason)}` : "";

/** Asks the host what an action would do, shows it, and does it only when told. `plan` gives request, command and verb. */
export function Asking({title, plan, children, onDone, onClose}) {
  const box = useRef(null);
  const [tried, setTried] = useState(null);
  const [failed, setFailed] = useState("");
  const [busy, setBusy] = useState(false);
  const now = JSON.stringify(plan);
  useEffect(() => box.current.showModal(), []);
  useEffect(() => setTried(null), [now]);
  const send = async dryRun => {
    setBusy(true);
    setFailed("");
    try {
      const body = dryRun ? plan.body : {...plan.body, ...plan.confirmed?.(tried)};
      const found = await ask(plan.path, {body: {...body, dryRun}});
      if (dryRun) setTried(found.result ?? found);
      else onDone(found.result ?? found);
    } catch (error) {
      setFailed(error.message);
    }
    setBusy(false);
  };
  const settled = tried && (tried.resolved ?? tried.approvals?.length ?? 1);
  return html`<dialog ref=${box} onClose=${onClose} aria-label=${title} class="asking"><h2>${title}</h2>${children}
    ${plan && html`<${Command} text=${plan.command} />`}
    ${tried && html`<div role="status"><p><strong>Dry run.</strong> ${plan.said(tried, settled)} Nothing was changed yet.</p>
      ${tried.claims && html`<ul>${tried.claims.map(one => html`<li><code>${one.fingerprint}</code> <bdi>${plain(one.tool)}</bdi>:
        <strong>${one.verdict || "unknown"}</strong> <bdi>${plain(one.why || one.value || "")}</bdi></li>`)}</ul>`}
      ${tried.refused && html`<ul>${tried.refused.map(one => html`<li>Refused: <bdi>${plain(one.message)}</bdi></li>`)}</ul>`}
      ${tried.view && html`<${Report} view=${tried.view} />`}</div>`}
    ${failed && html`<p role="alert">${plain(failed)}</p>`}
    <p class="tools"><button disabled=${!plan || busy} onClick=${() => send(true)}>Dry run</button>
      <button disabled=${!tried || !settled || busy} class="act" onClick=${() => send(false)}>${plan?.verb || "Do it"}</button>
      <button onClick=${() => box.current.close()}>Cancel</button></p></dialog>`;
}

const Choice = ({name, value, options, onChange}) => options.map(([one, text]) => html`<label class="choice"><input type="radio" name=${name}
  checked=${value === one} onChange=${() => onChange(one)} /> ${text}</label>`);
export const Reason = ({value, onChange, label}) => html`<p><label>${label} <input value=${value} maxlength="500" onInput=${event => onChange(event.currentTarget.value)} /></label></p>`;

function Resolve({claims, ...rest}) {
  const [verdict, setVerdict] = useState("");
  const [value, setValue] = useState("");
  const [reason, setReason] = useState("");
  let parsed = null, valid = true;
  try {
    if (value.trim()) parsed = exactly(value);
  } catch {
    valid = false;
  }
  const names = claims.map(one => one.fingerprint).join(" ");
  const chosen = claims.map(({key, version}) => ({key, version}));
  const many = claims.length > 1 ? " --yes" : "";
  let plan = null;
  if (verdict === "reconcile") {
    plan = {
      path: ADMIN, verb: "Resolve as it says", body: {action: "reconcile", claims: chosen, reason},
      command: claims.map(one => `antiphon claims resolve ${one.fingerprint} --reconcile --entry FILE.py${why(reason)} --yes`).join("\n"),
      said: (tried, count) => `reconcile is certain about ${number(count)} of ${number(claims.length)}.`,
      confirmed: tried => ({claims: tried.claims.filter(one => one.verdict).map(({key, version, verdict}) => ({key, version, verdict}))}),
    };
  } else if (verdict && valid) {
    const happened = verdict === "happened";
    const given = value.trim() ? `--value ${quoted(value.trim())}` : "--no-value";
    plan = {
      path: ADMIN, verb: `Resolve ${claims.length}`, body: {action: "resolve", claims: chosen, verdict, reason, ...(happened ? {value: parsed} : {})},
      command: `antiphon claims resolve ${names} ${happened ? `--happened ${given}` : "--did-not-happen"}${why(reason)}${many}`,
      said: (tried, count) => `${plural(count, "unknown outcome")} would be settled: ${happened ? "it happened, and equal calls are answered with this value." : "it did not happen, and the next equal call runs."}`,
    };
  }
  const one = claims.length === 1 ? claims[0] : null;
  return html`<${Asking} title=${one ? "Did it happen?" : `Did they happen? (${claims.length})`} plan=${plan} ...${rest}>
    ${one && html`<p><strong><bdi>${plain(one.tool)}</bdi></strong> · <code>${one.fingerprint}</code> · ${plural(one.attempts, "attempt")} · asked by <bdi>${plain(one.actor)}</bdi> in <bdi>${plain(one.session)}</bdi></p>
      <p><bdi>${plain(reasonOf(one))}</bdi></p>${one.arguments && html`<pre tabindex="0" aria-label="Arguments">${plain(one.arguments)}</pre>`}`}
    <fieldset><legend>Look at the other system first.</legend>
      <${Choice} name="verdict" value=${verdict} onChange=${setVerdict} options=${[["happened", "It happened"], ["did-not-happen", "It did not happen"], ["reconcile", "Ask the tool's reconcile function"]]} />
      ${verdict === "happened" && html`<p><label>It returned, as JSON (empty: nothing) <input value=${value} onInput=${event => setValue(event.currentTarget.value)} /></label></p>`}
      ${!valid && html`<p role="alert">This is not JSON.</p>`}
      <${Reason} label="Reason, for the audit log" value=${reason} onChange=${setReason} /></fieldset><//>`;
}

function Decide({approvals, ...rest}) {
  const [decision, setDecision] = useState("");
  const [reason, setReason] = useState("");
  const ids = approvals.map(one => one.id);
  const plan = decision ? {
    path: "/v1/approvals", verb: `${decision === "approve" ? "Approve" : "Deny"} ${ids.length}`, body: {approvals: ids, decision, reason},
    command: `antiphon approvals ${decision} ${ids.join(" ")}${why(reason)}`,
    said: (tried, count) => `${plural(count, "call")} would be ${decision === "approve" ? "approved; each is then made once." : "denied; none is made."}`,
  } : null;
  const one = approvals.length === 1 ? approvals[0] : null;
  return html`<${Asking} title=${one ? "May it be made?" : `May they be made? (${ids.length})`} plan=${plan} ...${rest}>
    ${one && html`<p><strong><bdi>${plain(one.tool)}</bdi></strong> · asked by <bdi>${plain(one.asker)}</bdi> · policy <bdi>${plain(one.policy)}</bdi></p>
      ${one.description && html`<p><bdi>${plain(one.description)}</bdi></p>`}<pre tabindex="0" aria-label="Arguments">${plain(one.arguments)}</pre>`}
    <fieldset><legend>Decision</legend>
      <${Choice} name="decision" value=${decision} onChange=${setDecision} options=${[["approve", "Approve"], ["deny", "Deny"]]} />
      <${Reason} label="Reason, told to the model when denied" value=${reason} onChange=${setReason} /></fieldset><//>`;
}

function Reset({breakers, ...rest}) {
  const [reason, setReason] = useState("");
  const {key} = breakers[0];
  const plan = {
    path: ADMIN, verb: "Reset", body: {action: "reset", tool: key, reason}, command: `antiphon breakers reset ${quoted(key)}${why(reason)}`,
    said: tried => `The breaker is ${tried.before} and would be ${tried.state}.`,
  };
  return html`<${Asking} title="Reset this breaker?" plan=${plan} ...${rest}><p><strong><bdi>${plain(key)}</bdi></strong>: <bdi>${plain(breakers[0].reason)}</bdi></p>
    <${Reason} label="Reason, for the audit log" value=${reason} onChange=${setReason} /><//>`;
}

const reasonOf = claim => claim.error?.message || (claim.lost ? "The worker was lost while the call was in flight." : "");
const GROUPS = [
  {name: "unknown", title: "Unknown outcomes", empty: "Every write is settled.", word: "unknown outcome", id: one => one.key, bulk: "Resolve", view: Resolve, prop: "claims",
    action: "Say whether it happened: equal calls wait for it.", row: one => [one.tool, one.arguments || one.fingerprint, when(one.updatedAtMs), reasonOf(one)]},
  {name: "approvals", title: "Approvals", empty: "No call waits for a person.", word: "approval", id: one => one.id, bulk: "Decide", view: Decide, prop: "approvals",
    action: "Approve or deny it: the call waits.", row: one => [one.tool, one.arguments, `${span(one.expiresAtMs - one.askedAtMs - one.ageMs)} left`, `asked by ${one.asker}`]},
  {name: "breakers", title: "Open breakers", empty: "Every breaker is closed.", word: "breaker", id: one => `${one.key} ${one.by}`, one: "Reset", view: Reset, prop: "breakers",
    action: "Reset it when the other side is well: calls are refused until then.", row: one => [one.key, `${one.state} by ${one.by === "operator" ? "an operator" : "a process"}`, when(one.updatedAtMs), one.reason]},
  {name: "golden", title: "Failed golden tests", empty: "No golden test failed.", word: "golden test", id: one => one.id,
    action: "Look at the difference, then repair the code, or accept the new behaviour.", row: one => [one.path, one.reasons[0], when(one.atMs)],
    command: one => one.node && one.commands.accept || one.commands.test, link: one => address`#/golden/${one.id}`},
  {name: "interrupted", title: "Interrupted runs", empty: "No run was interrupted.", word: "run", id: one => one.id,
    action: "Go on with it where it stopped.", row: one => [one.name, one.entry, when(one.startedAtMs)],
    command: one => one.entry ? `antiphon run ${quoted(one.entry)} --resume ${one.id}` : `antiphon show ${one.id}`, link: one => address`#/runs/${one.id}`},
];

/** How many there are, or `1,000+`. */
const counted = (count, atLeast) => `${number(count)}${atLeast ? "+" : ""}`;

/** A group has the first rows; the others are asked for when somebody wants to see or choose them. */
function Group({group, rows, count, atLeast, more, admin, at, chosen, setChosen, open}) {
  const [every, setEvery] = useState(false);
  const left = Math.min(count, MOST) > rows.length;
  const all = rows.length > 0 && !left && rows.every(one => chosen.has(group.id(one)));
  useEffect(() => {
    if (!every || left) return;
    setEvery(false);
    setChosen(new Set([...chosen, ...rows.map(group.id)]));
  }, [every, left]);
  const picked = rows.filter(one => chosen.has(group.id(one)));
  const toggle = ids => {
    const next = new Set(chosen), add = !ids.every(id => next.has(id));
    for (const id of ids) add ? next.add(id) : next.delete(id);
    setChosen(next);
  };
  return html`<section class="group" aria-label=${group.title}><h2>${group.title} (${counted(count, atLeast)})</h2>
    ${rows.length === 0 ? html`<p class="note">${group.empty}</p>` : html`<p class="note">${group.action}</p>
    ${admin && group.bulk && html`<p class="tools"><label><input type="checkbox" checked=${all} onChange=${() => left ? (setEvery(true), more()) : toggle(rows.map(group.id))} /> ${count > MOST ? `The first ${number(MOST)}` : `All ${number(count)}`}</label>
      <button disabled=${!picked.length} onClick=${() => open(group, picked)}>${group.bulk} ${picked.length} selected…</button></p>`}
    <ul class="rows">${rows.map(one => {
      const id = group.id(one), [title, ...more] = group.row(one), name = plain(title) || "(no name)";
      return html`<li key=${id} class=${at === id ? "at" : ""}>
        ${admin && group.bulk && html`<input type="checkbox" aria-label=${`Select ${name}`} checked=${chosen.has(id)} onChange=${() => toggle([id])} />`}
        <span class="what"><strong>${group.link ? html`<a href=${group.link(one)}><bdi>${name}</bdi></a>` : html`<bdi>${name}</bdi>`}</strong>
          ${more.filter(Boolean).map(text => html`<bdi>${plain(text)}</bdi>`)}</span>
        ${admin && group.view && html`<button onClick=${() => open(group, [one])}>${group.bulk || group.one}…</button>`}
        ${group.command && html`<${Command} text=${group.command(one)} />`}</li>`;
    })}</ul>
    ${left ? html`<button onClick=${more}>Show more of ${counted(count, atLeast)}</button>` : (count > rows.length || atLeast) && html`<p class="note">Only the first ${number(rows.length)} are shown.</p>`}`}</section>`;
}

export function Inbox() {
  const [found, setFound] = useState(null);
  const [audit, setAudit] = useState(null);
  const [chosen, setChosen] = useState(new Set());
  const [asking, setAsking] = useState(null);
  const [told, setTold] = useState("");
  const [turn, setTurn] = useState(0);
  const [limit, setLimit] = useState(PART);
  const [at, setAt] = useState("");
  const admin = me.value?.role === "admin";
  useEffect(() => repeat(700, async signal => setFound(await ask(`/v1/inbox?limit=${limit}`, {signal}))), [turn, limit]);
  useEffect(() => {
    if (admin) ask("/v1/admin/audit?limit=20").then(answer => setAudit(answer.acts), () => {});
  }, [turn, admin]);
  const done = (group, result) => {
    const refused = result.refused?.length ? ` Refused: ${result.refused.map(one => one.message).join(" ")}` : "";
    setTold(`${plural(result.resolved ?? result.approvals?.length ?? 1, group.word)}: done.${refused}`);
    setAsking(null);
    setChosen(new Set());
    setTurn(turn + 1);
  };
  const rows = found ? GROUPS.flatMap(group => (found[group.name] || []).map(one => ({group, one, id: group.id(one)}))) : [];
  const index = rows.findIndex(row => row.id === at);
  const move = step => rows.length && setAt(rows[Math.max(0, Math.min(rows.length - 1, index + step))].id);
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    x: () => {
      if (!admin || index < 0 || !rows[index].group.bulk) return;
      const next = new Set(chosen);
      if (!next.delete(at)) next.add(at);
      setChosen(next);
    },
    Enter: () => {
      if (index < 0) return;
      const {group, one} = rows[index];
      if (group.link) location.hash = group.link(one);
      else if (admin) setAsking({group, rows: [one]});
    },
  });
  useEffect(() => document.querySelector(".rows .at")?.scrollIntoView({block: "nearest"}), [at]);
  if (!found) return html`<h1>Inbox</h1><p>Loading…</p>`;
  const waiting = GROUPS.reduce((sum, group) => sum + found.counts[group.name], 0);
  return html`<h1>Inbox</h1><p role="status">${told ? html`<bdi>${plain(told)}</bdi>` : waiting ? `${counted(waiting, found.atLeast.length)} ${waiting === 1 ? "waits" : "wait"} for a person.` : "Nothing waits for a person."}</p>
    ${!admin && html`<p class="note">Only a key with the role admin may act here; yours has ${me.value.role}.</p>`}
    ${GROUPS.map(group => html`<${Group} key=${group.name} group=${group} rows=${found[group.name] || []} count=${found.counts[group.name]} atLeast=${found.atLeast.includes(group.name)} more=${() => setLimit(MOST)} admin=${admin} at=${at} chosen=${chosen}
      setChosen=${setChosen} open=${(which, picked) => setAsking({group: which, rows: picked})} />`)}
    ${admin && audit && html`<section class="group" aria-label="Audit log"><h2>Audit log</h2>
      ${audit.length === 0 ? html`<p class="note">No operator has changed anything.</p>` : html`<ul class="rows">${audit.map(one => html`<li><span class="what">
        <span>${when(one.atMs)}</span><strong>${plain(one.act)}</strong><bdi>${plain(one.by)}</bdi><bdi>${plain(one.tool || one.key || one.run || "")}</bdi>
        <bdi>${plain([one.verdict, one.reason].filter(Boolean).join(": "))}</bdi></span></li>`)}</ul>`}</section>`}
    ${asking && html`<${asking.group.view} ...${{[asking.group.prop]: asking.rows}} onDone=${result => done(asking.group, result)} onClose=${() => setAsking(null)} />`}`;
}
