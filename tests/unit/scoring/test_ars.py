"""Agent regression score, tool accuracy, bands, verdict (K5, K8)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidInput
from antiphon.scoring import Contradiction, Violation, ars, band, judge, tool_accuracy


def test_the_documents_example() -> None:
    tools = tool_accuracy(5, 4, 1, 1)
    assert tools == 0.60
    assert tools.parts == {"base": 0.8, "newPenalty": 0.1, "unusedPenalty": 0.1}
    score = ars(0.95, tools)
    assert score == 0.845
    assert score.to_wire() == {"score": 0.845, "outputSimilarity": 0.95, "toolAccuracy": 0.6, "band": "Good fidelity"}


@pytest.mark.parametrize(
    ("total", "used", "new", "unused", "expected"),
    [
        (0, 0, 0, 0, 1.0),
        (0, 0, 3, 0, 0.7),
        (3, 3, 0, 0, 1.0),
        (10, 10, 9, 0, 0.5),
        (10, 0, 0, 10, 0.0),
        (4, 2, 9, 2, 0.0),
    ],
)
def test_tool_accuracy(total: int, used: int, new: int, unused: int, expected: float) -> None:
    assert tool_accuracy(total, used, new, unused) == expected


@pytest.mark.parametrize(
    ("score", "label"),
    [
        (1.0, "Excellent fidelity"),
        (0.9, "Excellent fidelity"),
        (0.899, "Good fidelity"),
        (0.7, "Good fidelity"),
        (0.699, "Moderate fidelity"),
        (0.5, "Moderate fidelity"),
        (0.499, "Poor fidelity"),
        (0.0, "Poor fidelity"),
    ],
)
def test_bands_include_their_lower_end(score: float, label: str) -> None:
    assert band(score).label == label


@pytest.mark.parametrize("bad", [-0.1, 1.1, True, "1", float("nan"), None])
def test_a_part_that_is_no_share_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        ars(bad, 1.0)
    with pytest.raises(InvalidInput):
        ars(1.0, bad)


@pytest.mark.parametrize("counts", [(-1, 0, 0, 0), (1, 2, 0, 0), (1, 1, 0.5, 0), (1, True, 0, 0)])
def test_counts_that_cannot_be_are_refused(counts: Any) -> None:
    with pytest.raises(InvalidInput):
        tool_accuracy(*counts)


@given(st.floats(0, 1), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_a_score_stays_between_0_and_1(output: float, used: int, unused: int, new: int) -> None:
    tools = tool_accuracy(used + unused, used, new, unused)
    assert 0.0 <= tools <= 1.0
    assert 0.0 <= ars(output, tools) <= 1.0
    assert tool_accuracy(used + unused, used, new + 1, unused) <= tools


def test_a_verdict_lists_every_reason() -> None:
    assert judge(0.8) == ("pass", [])
    assert judge(0.8).passed
    against = judge(
        0.99,
        min_ars=0.9,
        violations=[Violation("dropped", "send", "Side effect 'send' was made in the recording and is missing now.")],
        contradictions=[(0, Contradiction("number", "100", "900"))],
        divergences=[{}, {}],
        refusal_flips=1,
    )
    assert against.verdict == "fail"
    assert against.reasons == [
        "Side effect 'send' was made in the recording and is missing now.",
        "Answer 0: number, '100' became '900'",
        "2 divergences from the recording",
        "1 model answer changed between valid and refusal",
    ]
    assert judge(1.0, contradictions=[(0, Contradiction("number", "1", "2"))], allow_contradictions=True).passed
