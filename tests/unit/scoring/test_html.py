"""The HTML report: complete, self-contained, and nothing in it is trusted."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from antiphon.scoring import ReplayReport, html, pages, render_report
from tests.unit.scoring.sample import REPORT

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Collects elements and checks that they nest."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def evil_everywhere(value: Any) -> Any:
    """*value* with every text, also every key, replaced by an attack."""
    if isinstance(value, dict):
        return {evil_key(key): evil_everywhere(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [evil_everywhere(inner) for inner in value]
    return f"{value} {EVIL}" if isinstance(value, str) else value


def evil_key(key: str) -> str:
    return key if key in KNOWN else f"{key}{EVIL}"


KNOWN = set(ReplayReport.__annotations__) | {
    *("kind name arguments outcome value sideEffect refusal tokens cost latencyMs lane source id".split()),
    *("score outputSimilarity toolAccuracy band calls seconds index message fields path recorded current".split()),
    *("artifact live replayed added dropped changed reordered sideEffectsChanged refusalFlips difference".split()),
}


def test_everything_is_there_in_this_order() -> None:
    page = Page(render_report(REPORT))
    headings = "First divergence|Agent regression score|Determinism score|Saved|Changes|Contradictions|Semantic hits"
    places = [page.text.index(heading) for heading in [*headings.split("|"), "Answers", "Timeline"]]
    assert places == sorted(places)
    for shown in (
        "0.845",
        "0.875",
        "refund",
        "side effect",
        "3,120",
        "$0.0468",
        "blocked",
    ):
        assert shown in page.text
    assert sum(tag == "svg" for tag, _ in page.elements) >= 8


def test_the_page_asks_for_nothing_and_runs_nothing() -> None:
    page = Page(render_report(REPORT))
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe", "object", "form", "base"}
    assert not [
        name
        for _, attributes in page.elements
        for name in attributes
        if name.startswith("on") or name in ("src", "href")
    ]
    policy = next(
        a["content"] for t, a in page.elements if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "prefers-color-scheme: dark" in render_report(REPORT)


def test_no_text_can_become_markup() -> None:
    plain, attacked = Page(render_report(REPORT)), Page(render_report(evil_everywhere(REPORT)))
    assert not {tag for tag, _ in attacked.elements} - {tag for tag, _ in plain.elements}
    assert not [name for _, attributes in attacked.elements for name in attributes if name.startswith("on")]
    assert "<script" not in render_report(evil_everywhere(REPORT))
    assert "alert(1)" in attacked.text


def test_a_planted_bug_in_escaping_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "escape", lambda text, quote: text)
    assert "<script" in render_report(evil_everywhere(REPORT))


def test_a_text_that_looks_like_a_place_of_a_template_stays_as_it_is() -> None:
    page = Page(render_report({"title": "$body ${style} $$ $", "verdict": "fail", "reason": "$title"}))
    assert "$body ${style} $$ $" in page.text
    assert "$title" in page.text


def test_every_template_is_used_and_there() -> None:
    sources = "".join(Path(module.__file__ or "").read_text() for module in (html, pages))
    assert set(html._templates()) <= set(re.findall(r'"([a-z-]+)"', sources))
    assert set(re.findall(r'fill\(\s*"([a-z-]+)"', sources)) <= set(html._templates())


def test_control_and_direction_characters_are_shown_as_such() -> None:
    page = render_report({"title": "a\x00b\u202ec\ud800d"})
    assert "a\ufffdb\ufffdc?d" in page
    page.encode("utf-8")


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
    text = Page(render_report(report)).text
    assert "First difference" in text
    same: ReplayReport = {"timelineA": [{"name": "a"}], "timelineB": [{"name": "a"}]}
    assert "No divergence" in Page(render_report(same)).text


def test_a_call_at_another_place_says_so() -> None:
    calls: list[Any] = [{"name": name, "arguments": {"n": name}} for name in "abcd"]
    text = Page(render_report({"timelineA": calls, "timelineB": [*calls[1:], calls[0]]})).text
    assert "At another place than in the recording." in text


def test_without_savings_the_calls_have_the_heading() -> None:
    assert "<h2>Calls</h2>" in render_report({"cacheHits": 1})
    assert "<h3>Calls</h3>" in render_report({"cacheHits": 1, "saved": {"calls": 1}})


def test_a_long_run_stays_a_small_page() -> None:
    calls: list[Any] = [{"name": "get", "arguments": {"n": n}, "value": "x" * 20_000} for n in range(5000)]
    report: ReplayReport = {"timelineA": calls, "timelineB": [*calls, {"name": "new"}]}
    page = render_report(report)
    assert "5000 equal calls" in page
    assert len(page) < 3_000_000
