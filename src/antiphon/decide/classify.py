"""From an exception to a :class:`Failure`, for popular libraries and without importing them (R7, D22, D23).

Order: what a class of exceptions says by itself (a refusal, an exhausted quota), the HTTP status together with the
vendor's error code, then SQLSTATE, JSON-RPC or gRPC code, class and errno. Wrappers such as
``openai.APIConnectionError`` are unwrapped. What is on no list is terminal and marked ``unclassified``. The tool's own
lists have the last word; they may name a code, a status or a class.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import suppress

from antiphon.contract.spec import ToolSpec
from antiphon.decide import _answers
from antiphon.decide._answers import CODES, Rule, attribute
from antiphon.decide.failure import (
    RETRIABLE_STATUSES,
    TERMINAL_STATUSES,
    UNSURE_4XX,
    Failure,
    Kind,
    Phase,
    Vote,
    timed_out,
)
from antiphon.errors import AntiphonError, InvalidInput, Refused

__all__ = ["Failure", "Kind", "Phase", "Vote", "classify", "is_control_flow", "timed_out"]

_DEPTH = 8
MESSAGE_LIMIT = 2_000


def is_control_flow(exc: BaseException) -> bool:
    """Whether *exc* is a cancellation, an interrupt or a framework's hand-over, which no layer may swallow."""
    if isinstance(exc, BaseExceptionGroup):
        return any(is_control_flow(leaf) for leaf in exc.exceptions)
    if not isinstance(exc, Exception):
        return True
    return any((_package(cls), cls.__name__) in _answers.CONTROL_FLOW for cls in type(exc).__mro__)


def classify(exc: BaseException, spec: ToolSpec | None = None, wall_ms: int | None = None) -> Failure:
    """What *exc* means for retry, breaker and claim.

    *wall_ms* is only needed to read a ``Retry-After`` date of a server that sent no ``Date``.

    >>> classify(ConnectionRefusedError(111, "Connection refused")).certainly_no_effect
    True
    """
    if is_control_flow(exc):
        raise TypeError(f"{type(exc).__name__} is control flow and cannot be classified: let it pass.")
    failure = _recognise(exc, wall_ms, 0) or _from_cause(exc, wall_ms) or _failure(exc, "unknown")
    if spec is not None and spec.retry is not None:
        failure = _tool_lists(failure, exc, spec.retry.retriable_codes, spec.retry.terminal_codes)
    return failure


def _recognise(exc: BaseException, wall_ms: int | None, depth: int) -> Failure | None:
    """The failure if *exc* itself is on a list."""
    if isinstance(exc, BaseExceptionGroup):
        return _worst(exc, wall_ms, depth)
    if isinstance(exc, AntiphonError):
        return _own(exc)
    rule = _class_rule(exc)
    if rule is not None and rule.kind in ("refusal", "quota"):  # takes precedence over the exception's status
        return _failure(exc, rule, _answers.status_of(exc), wall_ms)
    answered = _answered(exc, wall_ms)
    if answered is not None:
        return answered
    rule = _state_rule(exc) or rule or _errno_rule(exc)
    if rule is None:
        return None
    found = _opened(exc, wall_ms, depth) if rule.look else None
    if found is None:
        return _failure(exc, rule, None, wall_ms)
    phase = found.phase if rule.look == "all" else rule.phase
    return found._replace(phase=phase, message=_message(exc), exception=_name(type(exc)))


def _answered(exc: BaseException, wall_ms: int | None) -> Failure | None:
    """By status and vendor code; three kinds of 429: wait, wait too long (the retry table's), quota gone (D22)."""
    status = _answers.status_of(exc)
    codes = _answers.vendor_codes(exc)
    if codes & CODES["refusal"]:
        return _failure(exc, "refusal", status)
    if status == 402 or _answers.quota_gone(exc, status, codes, _message(exc)):
        return _failure(exc, "quota", status, wall_ms)
    if status == 429 or codes & CODES["throttle"]:
        return _server_says(exc, _failure(exc, "throttled", status, wall_ms))
    if codes & CODES["overload"]:
        return _server_says(exc, _failure(exc, "overloaded", status, wall_ms))
    if status is None or status < 400:
        # A stream that ends with an error event still carries the status that it began with.
        broken_stream = codes & CODES["server"] and _package(type(exc)) in ("openai", "anthropic")
        return _failure(exc, "server_error") if broken_stream else None
    listed = status in RETRIABLE_STATUSES or status in TERMINAL_STATUSES
    definite = status < 500 and status not in UNSURE_4XX
    kind: Kind = "answer" if listed or definite else "unclassified"
    rule = Rule(f"http_{status}", kind, status in RETRIABLE_STATUSES, "answered")
    return _server_says(exc, _failure(exc, rule, status, wall_ms)._replace(unclassified=not listed))


def _server_says(exc: BaseException, failure: Failure) -> Failure:
    """Some servers say explicitly whether a retry makes sense."""
    said = (_answers.header(exc, "x-should-retry") or "").lower()
    return failure._replace(retriable=said == "true") if said in ("true", "false") else failure


def _own(exc: AntiphonError) -> Failure:
    """An error of a guarded call made inside the tool: it has been retried there, if possible."""
    if isinstance(exc, InvalidInput):
        return _failure(exc, "invalid")
    if isinstance(exc, Refused):
        return _failure(exc, Rule(exc.code, "answer", False, "not_sent"))
    return _failure(exc, Rule(exc.code, "unclassified", False, "sent"))


def _class_rule(exc: BaseException) -> Rule | None:
    for cls in type(exc).__mro__:
        rule = _answers.BY_CLASS.get((_package(cls), cls.__name__))
        if rule is not None:
            again = getattr(sys.modules.get("socket"), "EAI_AGAIN", None)
            if cls.__name__ == "gaierror" and exc.args and exc.args[0] == again:
                return rule._replace(code="EAI_AGAIN")
            return rule
    return None


def _state_rule(exc: BaseException) -> Rule | None:
    """By the code of a database, an MCP server or a gRPC service."""
    state = attribute(exc, "sqlstate") or attribute(exc, "pgcode")
    if isinstance(state, str) and len(state) == 5:
        return _answers.BY_SQLSTATE.get(state) or _answers.BY_SQLSTATE.get(state[:2])
    packages = {_package(cls) for cls in type(exc).__mro__}
    if "mcp" in packages:
        code = attribute(attribute(exc, "error"), "code")
        if isinstance(code, int):
            return _answers.BY_JSONRPC.get(str(code)) or Rule(f"jsonrpc_{code}", "unclassified", False, "answered")
    if "grpc" in packages and callable(code := attribute(exc, "code")):
        with suppress(Exception):
            return _answers.BY_GRPC.get(code().name)
    return None


def _errno_rule(exc: BaseException) -> Rule | None:
    if isinstance(exc, OSError) and exc.errno is not None:
        return _answers.BY_ERRNO.get(exc.errno)
    return None


def _opened(exc: BaseException, wall_ms: int | None, depth: int) -> Failure | None:
    """The first listed failure inside a wrapper."""
    if depth >= _DEPTH:
        return None
    for inner in _inside(exc):
        found = _recognise(inner, wall_ms, depth + 1) or _opened(inner, wall_ms, depth + 1)
        if found is not None:
            return found
    return None


def _inside(exc: BaseException) -> Iterator[BaseException]:
    """Where libraries keep the exception they wrap."""
    candidates = (
        exc.__cause__,
        attribute(exc, "reason"),
        attribute(exc, "os_error"),
        attribute(exc, "orig"),
        exc.args[0] if exc.args else None,
        None if exc.__suppress_context__ else exc.__context__,
    )
    seen: set[int] = {id(exc)}
    for inner in candidates:
        if isinstance(inner, BaseException) and id(inner) not in seen:
            seen.add(id(inner))
            yield inner


def _from_cause(exc: BaseException, wall_ms: int | None) -> Failure | None:
    """An unknown exception raised ``from`` a listed one. What else the tool did is unknown, so nothing is certain.

    Only ``raise ... from`` counts: an implicit context may be some earlier, handled problem.
    """
    cause = exc.__cause__
    for _ in range(_DEPTH):
        if cause is None:
            return None
        found = _recognise(cause, wall_ms, 0)
        if found is not None:
            phase: Phase = found.phase if found.definite else "sent"
            return found._replace(phase=phase, message=_message(exc), exception=_name(type(exc)))
        cause = cause.__cause__
    return None


def _worst(group: BaseExceptionGroup[BaseException], wall_ms: int | None, depth: int) -> Failure | None:
    """Several failures at once are as bad as the one that leaves the most open."""
    if depth >= _DEPTH:
        return None
    found = [_recognise(leaf, wall_ms, depth + 1) or _failure(leaf, "unknown") for leaf in group.exceptions]
    return min(found, key=lambda f: (not f.unclassified, not f.may_have_applied, f.certainly_no_effect))


def _tool_lists(failure: Failure, exc: BaseException, retriable: tuple[str, ...], terminal: tuple[str, ...]) -> Failure:
    """The tool's lists take precedence over ours, terminal over retriable."""
    if not retriable and not terminal:
        return failure
    names = _tokens(failure, exc)
    if names.isdisjoint(terminal):
        return failure if names.isdisjoint(retriable) else _named(failure, exc)._replace(retriable=True)
    if failure.kind == "unclassified" and failure.status is None:
        return _named(failure, exc)._replace(kind="answer", retriable=False)
    return _named(failure, exc)._replace(retriable=False)


def _named(failure: Failure, exc: BaseException) -> Failure:
    """A failure that the tool lists is classified; an unknown exception then gets its class name as code."""
    code = type(exc).__name__ if failure.code == "unclassified" else failure.code
    return failure._replace(code=code, unclassified=False)


def _tokens(failure: Failure, exc: BaseException) -> set[str]:
    """Every name by which a tool may list this failure."""
    names = {failure.code}
    if failure.code == "EAI_AGAIN":
        names.add("dns")
    if failure.status is not None:
        names |= {str(failure.status), f"http_{failure.status}"}
    for cls in type(exc).__mro__:
        names |= {cls.__name__, _name(cls)}
    if isinstance(exc, OSError) and exc.errno is not None:
        names.add(errno.errorcode.get(exc.errno, ""))
    names.update(_answers.raw_codes(exc))
    return names


def _failure(exc: BaseException, rule: Rule | str, status: int | None = None, wall_ms: int | None = None) -> Failure:
    """The failure by *rule*, or by the rule of that name."""
    if isinstance(rule, str):
        rule = _answers.RULES[rule]
    return Failure(
        rule.code,
        _message(exc),
        rule.kind,
        rule.retriable,
        rule.phase,
        status,
        _answers.retry_after_ms(exc, wall_ms) if rule.phase == "answered" else None,
        _name(type(exc)),
        rule.kind == "unclassified",
    )


def _message(exc: BaseException) -> str:
    with suppress(Exception):
        text = str(exc)
        if text:
            return text[:MESSAGE_LIMIT]
    return type(exc).__name__


def _package(cls: type) -> str:
    return str(cls.__module__).partition(".")[0]


def _name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
