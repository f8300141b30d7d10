"""Memory, descriptors and threads stay flat: the short form of ``make soak``, and planted leaks that it finds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.campaigns.soak import Sample, Tolerance, judge, run, text

SHORT = Tolerance(memory_mb=40.0, memory_share=0.0, descriptors=6.0, threads=4.0)
"""Seconds after their start, processes still fill their caches and pools."""


def rising(report: dict[str, Any]) -> set[tuple[str, str]]:
    return {(found["process"], found["measure"]) for found in report["findings"] if not found["isFlat"]}


def test_a_host_and_agents_stay_flat(valkey_url: str, postgres_database: str) -> None:
    urls = {"redis": valkey_url, "postgres": postgres_database}
    report = run(2.5, stores=("redis", "postgres"), urls=urls, every_s=0.1, tolerance=SHORT)
    assert not rising(report), text(report)
    assert set(report["processes"]) == {"host", "agent, redis", "agent, postgres"}
    assert all(one["calls"] for one in report["processes"].values()), text(report)
    assert not [status for status in report["statuses"] if status >= "500"]


def test_planted_leaks_are_found() -> None:
    leaks = ("descriptor", "thread", "memory")
    report = run(1.5, stores=("sqlite",), leaks=leaks, with_host=False, every_s=0.1, least_calls=200, tolerance=SHORT)
    measures = {measure for _, measure in rising(report)}
    assert measures == {"memory_mb", "descriptors", "threads"}, text(report)
    assert "RISES" in text(report)


@pytest.mark.parametrize("measure", ["memory_mb", "descriptors", "threads"])
def test_a_slow_rise_is_found_and_peaks_are_none(measure: str) -> None:
    flat = [Sample(float(second), second * 10, 100.0, 20, 8, 0.0) for second in range(900)]
    peaks = [one._replace(**{measure: 200}) if number % 50 == 0 else one for number, one in enumerate(flat)]
    settled = [one._replace(**{measure: 10}) if number < 200 else one for number, one in enumerate(flat)]
    slow = [one._replace(**{measure: getattr(one, measure) + number / 40}) for number, one in enumerate(flat)]
    for samples in (flat, peaks, settled):
        assert all(finding.is_flat for finding in judge("host", samples))
    assert [finding.measure for finding in judge("host", slow) if not finding.is_flat] == [measure]
