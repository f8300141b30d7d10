"""The pages as files: complete, self-contained, and nothing in them is trusted."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from antiphon.scoring import ReplayReport, html, render_report
from tests.unit.scoring.sample import REPORT

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)><!-- \u2028"
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Collects elements and texts, as a browser would find them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style", "title"):
            name = str(self.elements[-1][1].get("id") or self.open[-1])
            self.texts[name] = self.texts.get(name, "") + data

    @property
    def data(self) -> Any:
        return json.loads(self.texts["data"])


def headings(view: Any) -> list[str]:
    return [part["label"] if part["kind"] == "score" else part.get("title", "") for part in view["parts"]]


def evil_everywhere(value: Any) -> Any:
    """*value* with every text, also every key, replaced by an attack."""
    if isinstance(value, dict):
        return {evil_key(key): evil_everywhere(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [evil_everywhere(inner) for inner in value]
    return f"{value} {EVIL}" if isinstance(value, str) else value


def evil_key(key: str) -> str:
    return key if key in KNOWN else f"{key}{EVIL}"


FIELDS = (Path(__file__).parents[3] / "docs" / "reference" / "replay-report.md").read_text(encoding="utf-8")
KNOWN = set(re.findall("`([a-zA-Z]+)`", "".join(re.findall(r"(?m)^\|(.*?)\|", FIELDS)))) | {
    *("kind name arguments outcome value sideEffect refusal tokens cost latencyMs lane source id".split()),
    *("score outputSimilarity toolAccuracy band calls seconds index message fields path recorded current".split()),
    *("artifact live replayed added dropped changed reordered sideEffectsChanged refusalFlips difference".split()),
}


def test_everything_is_there_in_this_order() -> None:
    view = html.report_view(REPORT)
    assert headings(view) == [
        "First divergence",
        "Agent regression score (ARS)",
        "Determinism score",
        "Saved",
        "Calls",
        "Changes",
        "Contradictions",
        "Semantic hits",
        "Answers",
        "Timeline",
    ]
    text = json.dumps(view, ensure_ascii=False)
    for shown in ("0.845", "0.875", "refund", "side effect", "3,120", "$0.0468", "blocked"):
        assert shown in text
    assert Page(render_report(REPORT)).data == {"view": json.loads(text)}


def test_only_the_script_and_style_of_the_console_may_run_and_nothing_may_be_asked() -> None:
    page = Page(render_report(REPORT))
    policy = next(
        a["content"] for t, a in page.elements if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    digests = [
        base64.b64encode(hashlib.sha256(page.texts[name].encode()).digest()).decode() for name in ("script", "style")
    ]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{digests[0]}'; style-src 'sha256-{digests[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    assert [tag for tag, _ in page.elements if tag == "script"] == ["script"] * 2
    assert not [a for _, a in page.elements if "src" in a or (a.get("href") or "data:,") != "data:,"]
    assert not [name for _, a in page.elements for name in a if name.startswith("on") or name == "style"]
    assert "prefers-color-scheme: dark" in page.texts["style"]


def test_no_text_can_become_markup() -> None:
    plain, attacked = Page(render_report(REPORT)), Page(render_report(evil_everywhere(REPORT)))
    assert [tag for tag, _ in attacked.elements] == [tag for tag, _ in plain.elements]
    assert attacked.texts["script"] == plain.texts["script"]
    assert not re.search("<(?!/script>)", render_report(evil_everywhere(REPORT)).split('id="data">')[1].split("\n")[0])
    assert EVIL in attacked.data["view"]["title"]
    assert EVIL in attacked.texts["title"]


def test_a_planted_bug_in_escaping_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "_json", json.dumps)
    attacked = render_report(evil_everywhere(REPORT))
    assert re.search("<(?!/script>)", attacked.split('id="data">')[1].split("\n")[0])


def test_a_text_that_looks_like_a_place_of_a_template_stays_as_it_is() -> None:
    title = "{style} $body %s \\1 </title>"
    page = Page(render_report({"title": title, "verdict": "fail", "reason": "{title}"}))
    assert page.texts["title"] == page.data["view"]["title"] == title


def test_half_a_character_and_a_huge_number_do_not_stop_a_page() -> None:
    page = render_report({"title": "a\x00b\u202ec\ud800d", "reason": "r", "outputsA": [10**40, {("a",): 1}]})
    page.encode("utf-8")
    assert Page(page).data["view"]["title"] == "a\x00b\u202ec\ud800d"


@pytest.mark.parametrize(
    "report", [{}, {"verdict": "pass"}, {"divergences": []}, {"changes": {}}, {"timelineA": [{"name": "a"}]}]
)
def test_any_part_may_be_absent(report: ReplayReport) -> None:
    Page(render_report(report))


def test_without_divergence_the_first_difference_is_on_top() -> None:
    report: ReplayReport = {
        "timelineA": [{"name": "a", "arguments": {"x": 1}}],
        "timelineB": [{"name": "a", "arguments": {"x": 2}}],
    }
    assert headings(html.report_view(report)) == ["First difference", "Timeline"]
    same: ReplayReport = {"timelineA": [{"name": "a"}], "timelineB": [{"name": "a"}]}
    assert headings(html.report_view(same)) == ["No divergence", "Timeline"]


def test_a_call_at_another_place_says_so() -> None:
    calls: list[Any] = [{"name": name, "arguments": {"n": name}} for name in "abcd"]
    view = html.report_view({"timelineA": calls, "timelineB": [*calls[1:], calls[0]]})
    assert "In a different position than in the recording." in json.dumps(view)


def test_a_long_run_stays_a_small_page() -> None:
    calls: list[Any] = [{"name": "get", "arguments": {"n": n}, "value": "x" * 20_000} for n in range(5000)]
    report: ReplayReport = {"timelineA": calls, "timelineB": [*calls, {"name": "new"}]}
    page = render_report(report)
    assert "5000 equal calls" in page
    assert len(page) < 3_000_000
