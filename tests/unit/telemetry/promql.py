"""Just enough of PromQL to run our alert rules against our own metrics, where ``promtool`` is not at hand.

Supported: selectors with matchers and ranges, ``rate``, ``increase``, ``histogram_quantile``, ``sum|max by``,
arithmetic, comparisons, ``and``, ``or``, ``on (…) group_left ()``. Rates are taken between the first and the last
sample of the range.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = list[tuple[float, float]]
Series = dict[tuple[str, Labels], Samples]
Value = Vector | float

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<text>\"[^\"]*\")|(?P<range>\[[0-9]+[smhd]\])"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<op>=~|!~|!=|>=|<=|==|[-+*/(){},=<>]))"
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LEVELS = (("or",), ("and",), (">", "<", ">=", "<=", "==", "!="), ("+", "-"), ("*", "/"))


class Selector(NamedTuple):
    """What an expression asks for."""

    metric: str
    labels: tuple[str, ...]


class Query:
    """A parsed expression; ``selectors`` is everything it reads, ``kept`` every label it groups or joins by."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0
        self.selectors: list[Selector] = []
        self.kept: list[tuple[str, ...]] = []
        self._run = self._binary(0)
        if self._place != len(self._tokens):
            raise ValueError(f"cannot read {text!r} after token {self._place}: {self._tokens[self._place]}")

    def at(self, series: Series, now: float) -> Vector:
        """The result at a moment."""
        value = self._run(series, now)
        assert isinstance(value, dict)
        return value

    # -- tokens --------------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self._peek()
        if expected and token != expected:
            raise ValueError(f"expected {expected!r}, found {token!r}")
        self._place += 1
        return token

    def _names(self) -> tuple[str, ...]:
        self._take("(")
        names: list[str] = []
        while self._peek() != ")":
            names.append(self._take())
            if self._peek() == ",":
                self._take()
        self._take(")")
        return tuple(names)

    # -- grammar -------------------------------------------------------------------------------------------------

    def _binary(self, level: int) -> Callable[[Series, float], Value]:
        if level == len(_LEVELS):
            return self._unit()
        left = self._binary(level + 1)
        while self._peek() in _LEVELS[level]:
            operator = self._take()
            on: tuple[str, ...] | None = None
            if self._peek() == "on":
                self._take()
                on = self._names()
                self.kept.append(on)
                if self._peek() == "group_left":
                    self._take()
                    self._names()
            left = _operation(operator, left, self._binary(level + 1), on)
        return left

    def _unit(self) -> Callable[[Series, float], Value]:
        token = self._take()
        if token == "(":
            inner = self._binary(0)
            self._take(")")
            return inner
        if token[0].isdigit():
            number = float(token)
            return lambda series, now: number
        if token in ("sum", "max"):
            self._take("by")
            by = self._names()
            self.kept.append(by)
            self._take("(")
            inner = self._binary(0)
            self._take(")")
            return _aggregation(sum if token == "sum" else max, by, inner)
        if token in ("rate", "increase"):
            self._take("(")
            name, matchers, seconds = self._selector(self._take())
            self._take(")")
            assert seconds, "a rate needs a range"
            return _rate(name, matchers, seconds, per_second=token == "rate")
        if token == "histogram_quantile":
            self._take("(")
            quantile = float(self._take())
            self._take(",")
            inner = self._binary(0)
            self._take(")")
            return _quantile(quantile, inner)
        name, matchers, seconds = self._selector(token)
        assert not seconds, "a range needs a rate"
        return _instant(name, matchers)

    def _selector(self, name: str) -> tuple[str, list[tuple[str, str, str]], float]:
        matchers: list[tuple[str, str, str]] = []
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                matchers.append((self._take(), self._take(), self._take()[1:-1]))
                if self._peek() == ",":
                    self._take()
            self._take("}")
        seconds = 0.0
        if self._peek().startswith("["):
            text = self._take()
            seconds = float(text[1:-2]) * _SECONDS[text[-2]]
        self.selectors.append(Selector(name, tuple(label for label, _, _ in matchers)))
        return name, matchers, seconds


def _tokens(text: str) -> Iterator[str]:
    place = 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"cannot read {text[place:]!r}")
        yield match[match.lastgroup or 0]
        place = match.end()


def _fits(labels: Labels, matchers: list[tuple[str, str, str]]) -> bool:
    found = dict(labels)
    tests: dict[str, Callable[[str, str], bool]] = {
        "=": lambda have, want: have == want,
        "!=": lambda have, want: have != want,
        "=~": lambda have, want: re.fullmatch(want, have) is not None,
        "!~": lambda have, want: re.fullmatch(want, have) is None,
    }
    return all(tests[operator](found.get(label, ""), want) for label, operator, want in matchers)


def _instant(name: str, matchers: list[tuple[str, str, str]]) -> Callable[[Series, float], Value]:
    def run(series: Series, now: float) -> Value:
        out: Vector = {}
        for (metric, labels), samples in series.items():
            recent = [value for at, value in samples if now - 300 < at <= now]
            if metric == name and recent and _fits(labels, matchers):
                out[labels] = recent[-1]
        return out

    return run


def _rate(
    name: str, matchers: list[tuple[str, str, str]], seconds: float, *, per_second: bool
) -> Callable[[Series, float], Value]:
    def run(series: Series, now: float) -> Value:
        out: Vector = {}
        for (metric, labels), samples in series.items():
            inside = [(at, value) for at, value in samples if now - seconds <= at <= now]
            if metric == name and len(inside) >= 2 and _fits(labels, matchers):
                grown = inside[-1][1] - inside[0][1]
                out[labels] = grown / (inside[-1][0] - inside[0][0]) if per_second else grown
        return out

    return run


def _aggregation(
    function: Callable[..., float], by: tuple[str, ...], inner: Callable[[Series, float], Value]
) -> Callable[[Series, float], Value]:
    def run(series: Series, now: float) -> Value:
        groups: dict[Labels, list[float]] = {}
        vector = inner(series, now)
        assert isinstance(vector, dict)
        for labels, value in vector.items():
            groups.setdefault(_only(labels, by), []).append(value)
        return {labels: function(values) for labels, values in groups.items()}

    return run


def _quantile(quantile: float, inner: Callable[[Series, float], Value]) -> Callable[[Series, float], Value]:
    def run(series: Series, now: float) -> Value:
        groups: dict[Labels, list[tuple[float, float]]] = {}
        vector = inner(series, now)
        assert isinstance(vector, dict)
        for labels, value in vector.items():
            bound = float(dict(labels)["le"])
            groups.setdefault(frozenset(pair for pair in labels if pair[0] != "le"), []).append((bound, value))
        out: Vector = {}
        for labels, buckets in groups.items():
            buckets.sort()
            total = buckets[-1][1]
            if total > 0:
                out[labels] = _interpolated(quantile * total, buckets)
        return out

    return run


def _interpolated(rank: float, buckets: list[tuple[float, float]]) -> float:
    below, count = 0.0, 0.0
    for bound, reached in buckets:
        if reached >= rank:
            return below if bound == float("inf") else below + (bound - below) * (rank - count) / (reached - count)
        below, count = bound, reached
    return below


def _only(labels: Labels, names: tuple[str, ...]) -> Labels:
    return frozenset(pair for pair in labels if pair[0] in names)


def _operation(
    operator: str,
    left: Callable[[Series, float], Value],
    right: Callable[[Series, float], Value],
    on: tuple[str, ...] | None,
) -> Callable[[Series, float], Value]:
    arithmetic: dict[str, Callable[[float, float], float]] = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b if b else float("nan"),
    }
    comparison: dict[str, Callable[[float, float], bool]] = {
        ">": lambda a, b: a > b,
        "<": lambda a, b: a < b,
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
        "==": lambda a, b: a == b,
        "!=": lambda a, b: a != b,
    }

    def run(series: Series, now: float) -> Value:
        one, two = left(series, now), right(series, now)
        assert isinstance(one, dict), "a number on the left is not needed here"
        if operator in ("and", "or"):
            assert isinstance(two, dict)
            if operator == "and":
                return {labels: value for labels, value in one.items() if labels in two}
            return two | one
        out: Vector = {}
        partners = two if isinstance(two, float) else {_only(k, on) if on else k: v for k, v in two.items()}
        for labels, value in one.items():
            if isinstance(partners, float):
                other: float | None = partners
            else:
                other = partners.get(_only(labels, on) if on else labels)
            if other is None:
                continue
            if operator in arithmetic:
                out[labels] = arithmetic[operator](value, other)
            elif comparison[operator](value, other):
                out[labels] = value
        return out

    return run
