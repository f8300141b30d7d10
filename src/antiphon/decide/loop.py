"""The loop guard of one run: repeated calls that yield nothing new, and hard caps (D25).

| what is counted (defaults)                      | note, the call runs | block        | forgotten at           |
|-------------------------------------------------|---------------------|--------------|------------------------|
| same tool and arguments, equal results in a row | 10 results          | 20 results   | progress, a new result |
| rounds of a cycle of 2 to 4 such calls          | 6 rounds            | 12 rounds    | progress, a new result |
| same tool and arguments, whatever comes back    | 100 calls           | 200 calls    | progress               |
| calls, seconds and cost of the run              |                     | ends the run | never                  |

The third blocked call without progress in between ends the run: every later call is refused. *Progress* is a successful
call that this run had not made before. Tools that declare ``poll`` are never blocked; they are told how long to wait,
and a poll also excuses the calls around it (a ``sleep`` between two polls), to which only the ceiling applies.

Outcomes are compared after times, durations and generated ids have been taken out, and only when a call
repeats: a call that is new costs two look-ups.
"""

from __future__ import annotations

import math
import re
import threading
from collections import deque
from hashlib import blake2b
from itertools import count
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from antiphon.contract._base import Millis, Positive, Seconds, Section

Action = Literal["allow", "note", "backoff", "block", "end"]
LoopReason = Literal["", "identical", "cycle", "ceiling", "poll", "calls", "seconds", "cost"]

LONGEST_CYCLE = 4
_NO_CYCLE = (0, 0, 0)
_KEEP_BYTES = 65_536
"""Longer outcomes are compared exactly, by hash, and not kept for the rest of the run."""

_STRING_OR_NUMBER = rb'(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*)'

# Separate patterns, each with a fixed first character or character class: the engine can skip to it.
_NOISE = (
    # JSON fields that are named after a time, a duration or the id of this one answer
    re.compile(
        rb'"(?:timestamp|time|ts|date|now|elapsed|duration|latency|took|uptime|expires|nonce|trace|span|request|event)'
        rb'(?:[_-]?(?:s|ms|us|ns|at|in|id|Id|time|seconds|millis))*"\s*:\s*' + _STRING_OR_NUMBER
    ),
    re.compile(rb'(?:_at|At)"\s*:\s*' + _STRING_OR_NUMBER),
    # UUIDs, digests of 128 bits, addresses
    re.compile(rb"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"),
    re.compile(rb"0x[0-9a-fA-F]{6,}"),
    re.compile(rb"[0-9a-f]{32}(?![0-9a-f])"),
    # dates, times of day, seconds (or finer) since 1970, durations with a unit
    re.compile(
        rb"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:\s?(?:Z|UTC|[+-]\d\d:?\d\d))?"
        rb"|\d{1,2}:\d\d:\d\d(?:[.,]\d+)?"
        rb"|1[5-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?(?!\d)"
        rb"|\d+(?:\.\d+)?\s?(?:ns|us|\xc2\xb5s|\xce\xbcs|ms|s|secs?|seconds?|milliseconds?|minutes?|mins?|hours?)\b"
    ),
)


class LoopLimits(Section, frozen=True):
    """Loop guard and per-run limits."""

    enabled: bool = True
    """Off: no loop detection; the limits ``max_calls``, ``max_seconds`` and ``max_cost`` still apply."""
    note_after: Positive = 10
    """Equal calls with equal results before the model gets a note."""
    block_after: Positive = 20
    """Equal calls with equal results before the call is refused."""
    note_rounds: Positive = 6
    """Rounds of a cycle before the model gets a note."""
    block_rounds: Positive = 12
    """Rounds of a cycle before the call is refused."""
    ceiling: Positive = 200
    """Equal calls, whatever they return, before the call is refused."""
    end_after_blocks: Positive = 3
    """Refused calls without progress before the run ends."""
    max_calls: Positive | None = None
    """Calls per run; the run ends when it is exceeded. Applies with ``enabled = false``, too."""
    max_seconds: Seconds | None = None
    """Duration of a run in seconds; otherwise like ``max_calls``."""
    max_cost: Annotated[float, Meta(gt=0)] | None = None
    """Cost of a run: the ``cost`` of its tools plus its tokens by ``[prices]``; then no further tool runs."""


class LoopPolicy(LoopLimits, frozen=True):
    """When a run counts as stuck in a loop."""

    poll_base_ms: Millis = 1_000
    poll_max_ms: Millis = 60_000
    remember: Positive = 512
    """How many different calls a run remembers: at least the latest ones, at most twice as many."""

    @property
    def watches(self) -> bool:
        """Whether a run needs a guard at all."""
        return self.enabled or not (self.max_calls is self.max_seconds is self.max_cost is None)


class LoopVerdict(NamedTuple):
    """What the guard tells a call, in words that the model can act on."""

    action: Action
    reason: LoopReason = ""
    message: str = ""
    delay_ms: int = 0
    """For ``backoff``: how long to wait before asking again."""

    @property
    def refused(self) -> bool:
        """Whether the call must not run."""
        return self.action == "block" or self.action == "end"


ALLOW = LoopVerdict("allow")


_Once = tuple[int, int, bytes | str]
"""A call made once: token, moment, outcome. Most calls never become more than that."""


class _Seen:
    """What is known about one call (tool and arguments)."""

    __slots__ = ("asked", "digest", "equal", "moment", "outcome", "times", "token")

    def __init__(self, token: int, moment: int, outcome: bytes | str) -> None:
        self.token = token
        """Number of its current result, unique in the run: equal numbers are the same call with the same result."""
        self.moment = moment
        """The guard's moment when it was last recorded: what it counted before the last progress is void."""
        self.times = 1
        """Calls since progress."""
        self.equal = 1
        """Equal results in a row since progress or a poll."""
        self.asked = -math.inf
        self.outcome: bytes | str | int = outcome if len(outcome) <= _KEEP_BYTES else hash(outcome)
        self.digest: bytes | None = None

    def says_the_same(self, outcome: bytes | str) -> bool:
        """Whether *outcome* equals the last one, which it replaces."""
        before, digest = self.outcome, self.digest
        self.digest = None
        if len(outcome) > _KEEP_BYTES:
            self.outcome = hash(outcome)
            return before == self.outcome
        self.outcome = outcome
        if isinstance(before, int):
            return False
        if before == outcome:
            self.digest = digest
            return True
        self.digest = outcome_digest(outcome)
        return self.digest == (digest or outcome_digest(before))


class LoopGuard:
    """Watches the calls of one run; thread-safe. Call :meth:`check` before a call and :meth:`record` after it ran.

    >>> guard = LoopGuard(LoopPolicy(block_after=2), started=0.0)
    >>> for second in range(2):
    ...     assert not guard.check("search", "digest", now=second).refused
    ...     guard.record("search", "digest", "nothing found")
    >>> guard.check("search", "digest", now=2).action
    'block'
    """

    def __init__(self, policy: LoopPolicy, started: float) -> None:
        self._policy = policy
        capped = policy.max_calls is not None or policy.max_seconds is not None or policy.max_cost is not None
        self._simple = policy.enabled and not capped
        self._enabled = policy.enabled
        self._remember = policy.remember
        self._started = started
        self._lock = threading.Lock()
        self._recent: dict[tuple[str, str], _Seen | _Once] = {}
        self._older: dict[tuple[str, str], _Seen | _Once] = {}
        """What was recent before; dropped when there are too many recent ones."""
        self._last: deque[int] = deque(maxlen=LONGEST_CYCLE)
        self._matches = _NO_CYCLE
        """For cycles of 2, 3 and 4: how many calls in a row equalled the one that many calls before."""
        self._moment = 0
        """Advances with each sign of progress and each poll."""
        self._progress = 0
        """The moment of the last progress."""
        self._blocks = 0
        self._tokens = count(1)
        self._ended: LoopVerdict | None = None
        self._count = count(1)
        self.calls: int = 0
        self.cost: float = 0.0

    @property
    def ended(self) -> LoopVerdict | None:
        """Why the run was ended, if it was."""
        return self._ended

    def check(self, tool: str, digest: str, now: float, *, poll: bool = False, cost: float = 0.0) -> LoopVerdict:
        """Before a call: may it run, and what should the model be told? A refused call must not be recorded."""
        policy = self._policy
        if self._ended is not None:
            return self._ended
        self.calls = calls = next(self._count)
        if calls > (policy.max_calls or calls) or policy.max_seconds is not None or policy.max_cost is not None:
            over = self._over(calls, now, cost)
            if over is not None:
                self._ended = over
                return over
        key = (tool, digest)
        seen = self._recent.get(key) or self._older.get(key)  # nothing is remembered while switched off
        if poll and seen is not None:
            with self._lock:
                seen = self._known(key, self._recent.get(key) or self._older.get(key) or seen)
        verdict = ALLOW if seen is None else self._judge(tool, seen, now, poll)
        if verdict.action == "block":
            return self._blocked(verdict)
        if cost and not self._afford(cost):  # other threads have spent the rest
            self._ended = self._no_money()
            return self._ended
        return verdict

    def is_new(self, call: tuple[str, str]) -> bool:
        """The cheapest :meth:`check`, for calls that neither poll nor cost; ``True``: the call may run and counts.

        ``False`` says nothing, and nothing was counted: call :meth:`check`.
        """
        if call in self._recent or call in self._older or self._ended is not None or not self._simple:
            return False
        self.calls = next(self._count)
        return True

    def record(self, tool: str, digest: str, outcome: bytes | str, *, ok: bool = True, poll: bool = False) -> None:
        """After a call that ran or was answered: record its outcome (of a failure: its code and message)."""
        key = (tool, digest)
        if not poll or (key not in self._recent and key not in self._older):
            self.note(key, outcome, ok)
        elif self._enabled:
            self._note_again(key, outcome, poll)
        if poll and self._enabled:
            with self._lock:
                self._moment += 1
                self._matches = _NO_CYCLE

    def note(self, call: tuple[str, str], outcome: bytes | str, ok: bool = True) -> None:
        """:meth:`record` for a call that does not poll.

        One that is new takes no lock: each step is atomic; a race merges two signs of progress or forgets a call.
        """
        recent = self._recent
        if call in recent or call in self._older:
            self._note_again(call, outcome, poll=False)
        elif self._enabled:
            moment = self._moment
            if ok:
                self._progress = self._moment = moment = moment + 1
                self._blocks = 0
            if len(recent) >= self._remember:
                self._older = recent
                recent = self._recent = {}
            token = next(self._tokens)
            recent[call] = (token, moment, outcome)
            self._matches = _NO_CYCLE
            self._last.append(token)

    def _note_again(self, key: tuple[str, str], outcome: bytes | str, poll: bool) -> None:
        with self._lock:
            seen = self._recent.get(key) or self._older.get(key)
            if seen is None:  # dropped in the meantime
                return
            known = self._known(key, seen)
            self._again(known, outcome, poll)
            self._follow(known.token)

    def spend(self, cost: float) -> None:
        """Add a cost that became known only afterwards (tokens of a model call)."""
        with self._lock:
            self.cost += cost

    def _afford(self, cost: float) -> bool:
        """Spend *cost* if the cap allows it, in one step."""
        most = self._policy.max_cost
        with self._lock:
            if most is not None and self.cost + cost > most + 1e-9:
                return False
            self.cost += cost
        return True

    def _judge(self, tool: str, seen: _Seen | _Once, now: float, poll: bool) -> LoopVerdict:
        policy = self._policy
        if not isinstance(seen, _Seen):
            seen = _Seen(*seen)
        if poll:
            return self._poll(tool, seen, now)
        equal = seen.equal if seen.moment == self._moment else 0
        if equal >= policy.note_after or equal >= policy.block_after:
            what = f"'{tool}' has returned the same result {equal} times for these arguments"
            return _ladder("identical", what, equal >= policy.block_after)
        two, three, four = self._matches
        enough = min(policy.note_rounds, policy.block_rounds) - 1
        if two >= 2 * enough or three >= 3 * enough or four >= 4 * enough:
            cycle = self._cycle(seen.token)
        else:
            cycle = None
        if cycle is not None:
            length, rounds = cycle
            what = f"the last calls are the same {length} calls with the same results, {rounds} times over"
            return _ladder("cycle", what, rounds >= policy.block_rounds)
        times = seen.times if seen.moment >= self._progress else 0
        if times * 2 >= policy.ceiling:
            what = f"'{tool}' has been called {times} times with these arguments, and nothing else was achieved since"
            return _ladder("ceiling", what, times >= policy.ceiling)
        return ALLOW

    def _cycle(self, token: int) -> tuple[int, int] | None:
        """Length and complete rounds of the cycle that a call with this result would continue."""
        for length, matches in enumerate(self._matches, 2):
            if matches >= length and len(self._last) >= length and self._last[-length] == token:
                return length, matches // length + 1
        return None

    def _poll(self, tool: str, seen: _Seen, now: float) -> LoopVerdict:
        before, seen.asked = seen.asked, now
        if seen.equal < 2:
            return ALLOW
        policy = self._policy
        delay = min(policy.poll_max_ms, policy.poll_base_ms << min(seen.equal - 2, 40))
        if (now - before) * 1000 >= delay:
            return ALLOW
        message = (
            f"'{tool}' has answered the same {seen.equal} times. "
            f"Wait at least {delay / 1000:g} s before you ask again, or do something else meanwhile."
        )
        return LoopVerdict("backoff", "poll", message, delay)

    def _blocked(self, verdict: LoopVerdict) -> LoopVerdict:
        with self._lock:
            self._blocks += 1
            blocks = self._blocks
        if blocks < self._policy.end_after_blocks:
            return verdict
        self._ended = LoopVerdict(
            "end",
            verdict.reason,
            f"{verdict.message} This was blocked call number {blocks} without progress: the run is ended. "
            "Stop calling tools and report what you have.",
        )
        return self._ended

    def _over(self, calls: int, now: float, cost: float) -> LoopVerdict | None:
        policy = self._policy
        if policy.max_calls is not None and calls > policy.max_calls:
            return _cap("calls", f"{policy.max_calls} calls")
        if policy.max_seconds is not None and now - self._started > policy.max_seconds:
            return _cap("seconds", f"{policy.max_seconds:g} seconds")
        if policy.max_cost is not None and self.cost + cost > policy.max_cost + 1e-9:
            return self._no_money()
        return None

    def _no_money(self) -> LoopVerdict:
        return _cap("cost", f"a cost of {self._policy.max_cost:g}")

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _known(self, key: tuple[str, str], seen: _Seen | _Once) -> _Seen:
        """The full entry of a call that repeats, among the recent ones."""
        if not isinstance(seen, _Seen):
            seen = _Seen(*seen)
        self._recent[key] = seen
        return seen

    def _again(self, seen: _Seen, outcome: bytes | str, poll: bool) -> None:
        if seen.moment < self._progress:
            seen.times = 0
        if seen.moment < self._moment and not poll:
            seen.equal = 0
        seen.moment = self._moment
        seen.times += 1
        if seen.says_the_same(outcome):
            seen.equal += 1
        else:
            seen.token = next(self._tokens)
            seen.equal = 1

    def _follow(self, token: int) -> None:
        """Count the call towards cycles of 2, 3 and 4."""
        last, (two, three, four), size = self._last, self._matches, len(self._last)
        self._matches = (
            two + 1 if size >= 2 and last[-2] == token else 0,
            three + 1 if size >= 3 and last[-3] == token else 0,
            four + 1 if size >= 4 and last[-4] == token else 0,
        )
        last.append(token)


def _ladder(reason: LoopReason, what: str, block: bool) -> LoopVerdict:
    advice = "Use what you already know, change the arguments, try another tool, or finish."
    if block:
        return LoopVerdict("block", reason, f"Not run: {what}. {advice}")
    return LoopVerdict("note", reason, f"Note: {what}. Going on like this will be blocked. {advice}")


def _cap(reason: LoopReason, limit: str) -> LoopVerdict:
    return LoopVerdict(
        "end",
        reason,
        f"Not run: this run may take {limit} and has used them up. The run is ended; report what you have. "
        "(An operator can raise the limit in the loop policy.)",
    )


def normalise(outcome: bytes | str) -> bytes:
    """*outcome* without times, durations, UUIDs, trace ids and addresses, and with white space collapsed.

    >>> normalise('{"state": "busy", "seen": "2024-05-01T10:00:00Z"}')
    b'{"state": "busy", "seen": "~"}'
    """
    raw = outcome.encode("utf-8", "surrogatepass") if isinstance(outcome, str) else outcome
    for pattern in _NOISE:
        raw = pattern.sub(b"~", raw)
    return b" ".join(raw.split())


def outcome_digest(outcome: bytes | str) -> bytes:
    """A digest that is equal for outcomes that say the same."""
    return blake2b(normalise(outcome), digest_size=16).digest()
