// The frame: navigation, keys, sign-in, and the page that the address names.
import {html} from "htm/preact";
import {render} from "preact";
import {signal} from "@preact/signals";
import {useEffect, useRef, useState} from "preact/hooks";
import {Compare} from "./compare.js";
import {Effects} from "./effects.js";
import {GoldenTest, GoldenTests} from "./golden.js";
import {Health} from "./health.js";
import {Inbox} from "./inbox.js";
import {inlined, me, problem, signIn, signOut} from "./api.js";
import {Matrices, Matrix} from "./matrices.js";
import {Runs} from "./runs.js";
import {Run} from "./run.js";
import {Report} from "./report.js";
import {plain, subject, useKeys} from "./ui.js";

const PAGES = [
  {path: "inbox", key: "i", title: "Inbox", view: Inbox},
  {path: "runs", key: "r", title: "Runs", view: Runs, one: Run},
  {path: "compare", key: "c", title: "Compare", view: Compare, one: Compare},
  {path: "matrices", key: "m", title: "Matrices", view: Matrices, one: Matrix},
  {path: "golden", key: "t", title: "Golden", view: GoldenTests, one: GoldenTest},
  {path: "effects", key: "e", title: "Effects", view: Effects},
  {path: "health", key: "h", title: "Health", view: Health},
];
const where = signal(location.hash);
addEventListener("hashchange", () => {
  where.value = location.hash;
  problem.value = "";
  subject.value = "";
  document.getElementById("main")?.focus();  // Enter is not for the link that led here
});
/** A part of the address as it was before it was encoded; what somebody typed may not be. */
const decoded = part => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};

function Help({onClose}) {
  const box = useRef(null);
  useEffect(() => box.current.showModal(), []);
  return html`<dialog ref=${box} onClose=${onClose} aria-label="Keys"><h2>Keys</h2><dl>
    <dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>next, previous</dd><dt><kbd>Enter</kbd></dt><dd>open</dd>
    <dt><kbd>x</kbd></dt><dd>select, in the inbox</dd>
    <dt><kbd>/</kbd></dt><dd>search</dd>
    ${PAGES.map(page => html`<dt><kbd>g</kbd> <kbd>${page.key}</kbd></dt><dd>${page.title}</dd>`)}
    <dt><kbd>?</kbd></dt><dd>these keys</dd></dl>
    <form method="dialog"><button onClick=${event => { event.preventDefault(); box.current.close(); }}>Close</button></form></dialog>`;
}

function SignIn() {
  const field = useRef(null);
  const send = event => {
    event.preventDefault();
    signIn(field.current.value);
  };
  return html`<main class="narrow"><h1>Antiphon</h1><form onSubmit=${send}>
    <p><label>API key <input ref=${field} type="password" autocomplete="off" required /></label></p>
    <p><button>Sign in</button></p>
    ${problem.value && html`<p role="alert">${plain(problem.value)}</p>`}
    <p class="note">Make one: <code>antiphon apikeys create --role read</code>. It stays in this tab until you close it.</p></form></main>`;
}

function App() {
  const [help, setHelp] = useState(false);
  const keys = {"?": () => setHelp(true)};
  for (const page of PAGES) keys[`g ${page.key}`] = () => (location.hash = `#/${page.path}`);
  useKeys(keys);
  useEffect(() => { signIn(); }, []);
  const [, first, id, other] = where.value.split("/").map(decoded);
  const page = PAGES.find(one => one.path === first) || PAGES.find(one => one.path === "runs");
  const title = (me.value ? [subject.value, page.title, "Antiphon"] : ["Sign in", "Antiphon"]).filter(Boolean).join(" · ");
  useEffect(() => { document.title = title; }, [title]);
  if (!me.value) return html`<${SignIn} />`;
  return html`<a class="skip" href="#main" onClick=${event => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to content</a>
    <header><strong>Antiphon</strong><nav aria-label="Pages">${PAGES.map(one => html`<a href=${`#/${one.path}`} aria-current=${one === page ? "page" : undefined}>${one.title}</a>`)}</nav>
      <span class="who">${plain(me.value.tenant)} · ${me.value.role}</span>
      <button onClick=${() => setHelp(true)} aria-label="Keys">?</button><button onClick=${signOut}>Sign out</button></header>
    ${problem.value && html`<p class="problem" role="alert">${plain(problem.value)}</p>`}
    <main id="main" tabindex="-1">${page.one && id ? html`<${page.one} key=${`${id}/${other}`} id=${id} other=${other} />` : html`<${page.view} key=${page.path} />`}</main>
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}`;
}

/** A file: one page, nothing else to go to. */
const File = () => html`<main>${inlined.view ? html`<${Report} view=${inlined.view} />` : html`<${Run} id=${inlined.run} />`}</main>`;

render(html`<${inlined ? File : App} />`, document.getElementById("app"));
