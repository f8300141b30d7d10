"""The style of the HTML report: one sheet, light and dark, from a phone's width up."""

STYLE = """
:root {
  color-scheme: light dark; --bg:#f4f5f7; --card:#fff; --text:#1b1f24; --muted:#57606a;
  --line:#d8dde3; --accent:#2f5fd0; --good:#1a7f37; --fair:#9a6700; --poor:#c0262d; --track:#e4e8ed;
  --del:#ffdfdd; --ins:#d2f4da; --code:#f0f2f5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg:#0f1318; --card:#171c23; --text:#e6e9ee; --muted:#9aa4b2; --line:#2c343e; --accent:#7aa2ff;
    --good:#4cc26a; --fair:#e3b341; --poor:#ff7b72; --track:#2a323c; --del:#54211f; --ins:#143f27;
    --code:#1f262f;
  }
}
* { box-sizing: border-box; }
body { margin:0; background:var(--bg); color:var(--text); font:16px/1.5 system-ui, sans-serif; }
main { max-width:1120px; margin:0 auto; padding:1.25rem 1rem 3rem; }
h1 { font-size:1.5rem; margin:0; }
h2 { font-size:1.05rem; margin:0 0 .75rem; }
h3 { font-size:.95rem; margin:1rem 0 .4rem; }
p { margin:.3rem 0; }
ul { margin:.4rem 0; padding-left:1.2rem; }
section, header {
  background:var(--card); border:1px solid var(--line); border-radius:10px; padding:1rem 1.1rem;
  margin-bottom:1rem;
}
header { display:flex; flex-wrap:wrap; gap:.4rem 1rem; align-items:flex-start; }
header .what { flex:1 1 16rem; min-width:0; }
.muted, .note { color:var(--muted); font-size:.875rem; }
.tile .note { font-size:.75rem; }
.badge { font-weight:600; border-radius:999px; padding:.2rem .9rem; border:2px solid currentColor; }
.badge.pass { color:var(--good); }
.badge.fail { color:var(--poor); }
.first { border-left:5px solid var(--poor); }
.first.none { border-left-color:var(--good); }
.scores { display:grid; grid-template-columns:repeat(auto-fit, minmax(19rem, 1fr)); gap:1rem; }
.score { display:flex; gap:1rem; align-items:center; }
.score > .parts { flex:1; min-width:0; }
.ring { width:96px; height:96px; flex:none; }
.ring circle { fill:none; stroke-width:9; }
.ring text { font:600 19px system-ui, sans-serif; text-anchor:middle; fill:var(--text); }
.ring .track { stroke:var(--track); }
.ring .good { stroke:var(--good); }
.ring .fair { stroke:var(--fair); }
.ring .poor { stroke:var(--poor); }
.part {
  display:grid; grid-template-columns:8.5rem 1fr 3.2rem; gap:.6rem; align-items:center;
  font-size:.875rem;
}
.part .number { text-align:right; font-variant-numeric:tabular-nums; }
.bar { width:100%; height:8px; border-radius:4px; overflow:hidden; }
.bar .track { fill:var(--track); }
.bar .good { fill:var(--good); }
.bar .fair { fill:var(--fair); }
.bar .poor { fill:var(--poor); }
.tiles { display:grid; grid-template-columns:repeat(auto-fit, minmax(7.5rem, 1fr)); gap:.6rem; }
.tile {
  border:1px solid var(--line); border-radius:8px; padding:.5rem .7rem; display:flex;
  flex-direction:column;
}
.tile .figure { font-size:1.3rem; font-weight:600; font-variant-numeric:tabular-nums; overflow-wrap:anywhere; }
.tile .name { font-size:.8rem; color:var(--muted); }
.tile.alarm { border-color:var(--poor); }
.tile.alarm .figure { color:var(--poor); }
table { border-collapse:collapse; width:100%; }
th, td { text-align:left; vertical-align:top; padding:.3rem .5rem; border-top:1px solid var(--line); }
th[scope=row] { width:32%; font-weight:500; overflow-wrap:anywhere; }
pre, code { font:.82rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { margin:0; white-space:pre-wrap; overflow-wrap:anywhere; }
code { background:var(--code); border-radius:4px; padding:0 .25rem; }
del { background:var(--del); text-decoration:line-through; }
ins { background:var(--ins); text-decoration:underline; }
.legend { font-size:.8rem; color:var(--muted); margin-bottom:.6rem; }
.row, .heads { display:grid; grid-template-columns:1fr 1fr; gap:.6rem; margin-bottom:.5rem; }
.heads { font-weight:600; }
.call {
  border:1px solid var(--line); border-left:4px solid var(--line); border-radius:6px;
  padding:.45rem .6rem; min-width:0;
}
.changed .call { border-left-color:var(--fair); }
.dropped .call { border-left-color:var(--poor); }
.added .call { border-left-color:var(--accent); }
.call.gap { border-style:dashed; color:var(--muted); font-size:.875rem; }
.call .top { display:flex; flex-wrap:wrap; gap:.1rem .6rem; align-items:baseline; }
.call .top b { overflow-wrap:anywhere; }
.mark { font-size:.72rem; border:1px solid currentColor; border-radius:4px; padding:0 .3rem; }
.mark.alarm { color:var(--poor); }
.full { grid-column:1 / -1; }
details { margin:.35rem 0; }
summary { cursor:pointer; color:var(--accent); font-size:.875rem; }
.side { display:none; }
@media (max-width:700px) {
  main { padding:.75rem .6rem 2rem; }
  header .what { flex-basis:100%; }
  .badge { order:-1; }
  .row { grid-template-columns:1fr; }
  .heads { display:none; }
  .side { display:inline; }
  .part { grid-template-columns:7rem 1fr 2.9rem; }
  th[scope=row] { width:auto; display:block; border:0; }
  table.fields td { display:block; border:0; padding-top:0; }
  .scores { grid-template-columns:1fr; }
  .ring { width:80px; height:80px; }
}
@media print {
  body { background:#fff; }
  section, header { break-inside:avoid; }
}
"""
