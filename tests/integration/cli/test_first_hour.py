"""What a new user tries in the first hour: files instead of ids, pages, wrong names, narrow terminals, completion."""

from __future__ import annotations

from pathlib import Path

from tests.integration.cli.conftest import Command


def golden(antiphon: Command) -> str:
    """A recording in a file, with its run gone from the store."""
    run = str(antiphon("run", "agent.py:main", "--json").json["run"])
    assert antiphon("export", run, "-o", "run.antiphon").code == 0
    return run


# -- files ----------------------------------------------------------------------------------------------------------


def test_show_takes_a_file_and_leaves_the_store_alone(antiphon: Command) -> None:
    run = golden(antiphon)
    before = antiphon("runs", "--json").json
    shown = antiphon("show", "run.antiphon")
    assert shown.code == 0
    assert run in shown.out
    assert "tools/refund" in shown.out
    event = antiphon("show", "run.antiphon", "--event", "1").json
    assert (event["seq"], event["type"]) == (1, "call.started")
    assert "be kind" in antiphon("show", "run.antiphon", "--context", "1").out
    assert antiphon("show", "run.antiphon", "--json").json["name"] == "orders"
    assert antiphon("runs", "--json").json == before


def test_show_of_a_file_that_is_none(antiphon: Command) -> None:
    assert antiphon("show", "nothing.antiphon").code == 4
    Path("broken.antiphon").write_text("{")
    assert antiphon("show", "broken.antiphon").code == 6


def test_show_as_a_page(antiphon: Command) -> None:
    golden(antiphon)
    done = antiphon("show", "run.antiphon", "--html", "run.html")
    assert done.code == 0
    page = Path("run.html").read_text()
    assert "tools/refund" in page
    assert "refunded 7" in page
    assert "<script" not in page


def test_results_of_golden_runs_as_a_page(antiphon: Command) -> None:
    golden(antiphon)
    done = antiphon("test", "run.antiphon", "--html", "tests.html", "--no-sandbox")
    page = Path("tests.html").read_text()
    assert ("pass" in page) == (done.code == 0)
    assert "run.antiphon" in page
    assert "agent regression score" in page
