"""Every error Antiphon raises, drawn as a tree.

    AntiphonError
    ├── InvalidInput            the caller gave something that cannot be used
    │   ├── CanonicalError      a value has no canonical JSON form
    │   ├── ContractError       a document does not have the published shape
    │   ├── ConfigError         a setting is wrong
    │   └── ArtifactError       a recording cannot be read
    ├── Refused                 we decided not to dispatch the call
    │   ├── InFlight            an equal call is running
    │   ├── IdempotencyConflict the key is in use for other parameters
    │   ├── Undone              the call with this key was made and undone
    │   ├── SagaUndoing         the saga of the call is being undone, or was
    │   ├── RunCancelled        the run that made the call was cancelled
    │   ├── CircuitOpen         the circuit breaker of the dependency is open
    │   ├── LoopBlocked         the loop guard or a cap stopped the call
    │   ├── ReplayBlocked       a replay may not run this side effect
    │   ├── ApprovalRequired    a person must approve the call first
    │   ├── ApprovalDenied      a person denied the call, or withdrew the approval
    │   └── ToolDeniedError     turn control or a hook answered instead of the tool
    ├── CallFailed              the call was dispatched and did not succeed
    │   ├── OutcomeUnknown      it may have taken effect: verify before you repeat it
    │   ├── RecordedError       an earlier call of the same intent failed, and its failure is the answer
    │   ├── RetryExhausted      no attempts, time or retry budget left
    │   └── CallTimeout         an attempt ran out of time
    ├── ResultNotKept           the call took effect earlier; what it returned cannot be given again
    ├── StoreError              the store could not do its part
    │   ├── StoreUnavailable    it cannot be reached, is locked, full or read-only
    │   ├── StoreVersionError   a record was written by a newer release
    │   └── Fenced              the claim now has another owner
    ├── Divergence              a replay did not do what the recording did
    │   └── ReplayMiss          the recording has no answer for a call
    ├── MaskedArgument          a replay would have sent a pseudonym to the world
    ├── Paused                  a tool stopped to ask a person; its call is made again later
    ├── NotFound                no such run, claim or artifact
    └── MissingExtra            an optional package is not installed

Each error has ``code`` (stable, for machines), ``message`` and ``hint`` (what to do next).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import GetSetDescriptorType, MemberDescriptorType, WrapperDescriptorType
from typing import Any


class AntiphonError(Exception):
    """Base of every error of this package."""

    code: str = "antiphon_error"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data: Mapping[str, Any] = data
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        between = "\n" if "\n" in self.message else " "
        return f"{self.message}{between}{self.hint}" if self.hint else self.message


class InvalidInput(AntiphonError, ValueError):
    """The caller gave something that cannot be used; ``path`` says where."""

    code = "validation_error"

    def __init__(self, message: str, *, path: str = "$", hint: str = "", **data: Any) -> None:
        super().__init__(message, hint=hint, **data)
        self.path = path


class CanonicalError(InvalidInput):
    """A value has no canonical JSON form (RFC 8785)."""

    code = "not_canonical"


class ContractError(InvalidInput):
    """A document does not have the published shape."""


class ConfigError(InvalidInput):
    """A setting is wrong; ``path`` names file, line or environment variable."""

    code = "config_error"


class ArtifactError(InvalidInput):
    """A recording cannot be read."""

    code = "artifact_error"


class Refused(AntiphonError):
    """We decided not to dispatch the call."""

    code = "refused"


class InFlight(Refused):
    """An equal call is running."""

    code = "in_flight"


class IdempotencyConflict(Refused):
    """The key is in use for other parameters."""

    code = "idempotency_conflict"


class Undone(Refused):
    """The call with this key was made and undone; its result no longer holds, and nothing ran."""

    code = "undone"


class SagaUndoing(Refused):
    """The saga that the call belongs to is being undone, or was: it takes no further writes."""

    code = "saga_undoing"


class RunCancelled(Refused):
    """The run that made the call was cancelled: its code may continue in a thread, but makes no further calls."""

    code = "run_cancelled"


class CircuitOpen(Refused):
    """The circuit breaker of the dependency is open."""

    code = "circuit_open"


class LoopBlocked(Refused):
    """The loop guard or a cap stopped the call."""

    code = "loop_blocked"


class ReplayBlocked(Refused):
    """A replay may not run this side effect."""

    code = "replay_blocked"


class ApprovalRequired(Refused):
    """A person must approve the call first; ``approval_id`` names the question."""

    code = "approval_required"

    @property
    def approval_id(self) -> str:
        """The id that ``antiphon approvals approve`` takes."""
        return str(self.data.get("approval_id", ""))


class ApprovalDenied(Refused):
    """A person denied the call, or withdrew the approval."""

    code = "approval_denied"


class ToolDeniedError(Refused):
    """Turn control or a hook answered instead of the tool; a before-hook raises it to deny a call."""

    code = "denied"


class CallFailed(AntiphonError):
    """The call was dispatched and did not succeed."""

    code = "call_failed"


class OutcomeUnknown(CallFailed):
    """It may have taken effect: verify before you repeat it."""

    code = "outcome_unknown"


class RecordedError(CallFailed):
    """An earlier call of the same intent failed; its recorded failure is the answer, and the tool did not run."""

    code = "recorded_error"


class RetryExhausted(CallFailed):
    """No attempts, time or retry budget left."""

    code = "retry_exhausted"


class CallTimeout(CallFailed):
    """An attempt ran out of time."""

    code = "timeout"


class ResultNotKept(AntiphonError):
    """An equal call took effect earlier; what it returned cannot be given again."""

    code = "result_not_kept"


class StoreError(AntiphonError):
    """The store could not do its part."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store cannot be reached, is locked, full or read-only."""

    code = "store_unavailable"


class StoreVersionError(StoreError):
    """A record was written by a newer release of Antiphon."""

    code = "store_version"


class Fenced(StoreError):
    """The claim now has another owner."""

    code = "fenced"


class Divergence(AntiphonError):
    """A replay did not do what the recording did."""

    code = "replay_diverged"


class ReplayMiss(Divergence):
    """The recording has no answer for a call."""

    code = "replay_miss"


class MaskedArgument(AntiphonError):
    """A replay would have sent a pseudonym of its recording to the world."""

    code = "masked_argument"


class Paused(AntiphonError):
    """A tool stopped before it took effect, to ask a person: its claim is given back and the call is made again later.

    Raised by a tool; like a framework's own hand-over it passes through the gateway and is no failure.
    """

    code = "paused"


class NotFound(AntiphonError, LookupError):
    """No such run, claim or artifact."""

    code = "not_found"


class MissingExtra(AntiphonError, ImportError):
    """An optional package is not installed."""

    code = "missing_extra"


def missing_extra(package: str, extra: str, needed_for: str, supported: str = "") -> MissingExtra:
    """The one sentence for an absent or unsupported optional package."""
    versions = f" ({supported})" if supported else ""
    return MissingExtra(
        f"{needed_for} needs the package '{package}'{versions}.",
        hint=f"Install it with: pip install 'antiphon[{extra}]'",
    )


_SCRIPT = "antiphon_script_"


def is_script_module(module: str) -> bool:
    """Whether a module is a script, which has one name when it is run and others when it is imported."""
    return module == "__main__" or module.startswith(_SCRIPT)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, also if its class is frozen."""
    if not hasattr(error, "__notes__"):
        object.__setattr__(error, "__notes__", [])
    error.add_note(note)


def class_name(kind: type) -> str:
    """How a class is recorded; a class of a script by the name that scripts always have."""
    module = kind.__module__
    return f"{'__main__' if module.startswith(_SCRIPT) else module}.{kind.__qualname__}"


def _modules(name: str) -> list[Any]:
    """Where a recorded class is looked up; the script may be loaded under a different name."""
    if not is_script_module(name):
        return [sys.modules.get(name)]
    loaded = [module for known, module in list(sys.modules.items()) if known.startswith(_SCRIPT)]
    return [*loaded, sys.modules.get("__main__")]


def find_class(name: str) -> type | None:
    """The class that :func:`class_name` named like this, if this process has loaded it, nested in others or not."""
    return next(_classes(name), None)


def _classes(name: str) -> Iterator[type]:
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        for place in _modules(".".join(parts[:cut])):
            for part in parts[cut:-1]:  # no getattr: a package may import its submodules in it
                place = getattr(place, "__dict__", {}).get(part)
            place = getattr(place, parts[-1], None)
            if isinstance(place, type):
                yield place


def held_by(error: BaseException, form: Callable[[Any], Any]) -> dict[str, Any]:
    """What an exception holds besides its message: ``args``, and ``attributes`` such as ``errno``, by name.

    *form* turns a value into JSON's own types, or raises; ``lost`` names what has no form.
    """
    held: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    lost = list[str]()
    if error.args and not _is_told(error):
        try:
            held["args"] = [form(argument) for argument in error.args]
        except Exception:  # whatever the classes of the arguments raise
            lost.append("args")
    for name in _attributes(error):
        value = getattr(error, name, None)
        if value is None or (name == "code" and type(value) is int):  # recorded as the number
            continue
        try:
            attributes[name] = form(value)
        except Exception:
            lost.append(name)
    if attributes or lost or not isinstance(type(error).__init__, WrapperDescriptorType):
        held["attributes"] = attributes
    return {**held, "lost": lost} if lost else held


def _is_told(error: BaseException) -> bool:
    """Whether the message alone says what the arguments are."""
    first, *more = error.args
    if isinstance(error, KeyError):
        return not more and _arguments(type(error), str(error))[0] == first
    return not more and type(first) is str and first == str(error)


def _attributes(error: BaseException) -> list[str]:
    """The names of what the exception holds, in slots and built-in classes, too."""
    names = list(vars(error))
    for kind in type(error).__mro__:
        if kind not in (BaseException, object):
            slots = (GetSetDescriptorType, MemberDescriptorType)
            names += [name for name, value in vars(kind).items() if isinstance(value, slots)]
    other = "obj" if isinstance(error, AttributeError) else ""  # any object, in any state
    return [name for name in dict.fromkeys(names) if not name.startswith("__") and name != other]


def rebuild_exception(error: Mapping[str, Any], read: Callable[[Any], Any] = lambda form: form) -> BaseException | None:
    """A recorded failure as the original exception, if its class is loaded, and takes a message or held only data.

    Only classes of modules that this process has imported are considered: a recording never makes us import anything,
    and code can only catch what it has imported. Anything else comes back as :class:`CallFailed` with the recorded
    code; ``data["recorded"]`` holds what it was. ``None`` if no exception was recorded. *read* restores the values
    that :func:`held_by` wrote.
    """
    name = str(error.get("class", ""))
    if "." not in name:
        return None
    message = str(error.get("message", ""))
    whole = "attributes" in error and "lost" not in error
    for kind in _classes(name):
        if not issubclass(kind, Exception) or issubclass(kind, AntiphonError):
            continue
        given = [()] if error.get("bare") else [(argument,) for argument in _arguments(kind, message)]
        ways = (kind, partial(kind.__new__, kind)) if whole else (kind,)
        for make in ways:
            made = next((made for arguments in given if (made := _made(make, arguments, error, read))), None)
            if made is not None:
                return made
    return CallFailed(message, code=str(error.get("code", "error")), recorded=dict(error))


def _made(
    make: Callable[..., Any], arguments: tuple[Any, ...], error: Mapping[str, Any], read: Callable[[Any], Any]
) -> Exception | None:
    try:
        made = make(*arguments)
        number = error.get("number")
        if type(number) is int and getattr(made, "code", None) != number:
            made.code = number
        if "args" in error:
            made.args = tuple(map(read, error["args"]))
        for name, value in error.get("attributes", {}).items():
            if not name.startswith("__"):
                object.__setattr__(made, name, read(value))  # also if the class forbids changes
        expected = "" if error.get("bare") else str(error.get("message", ""))
        return made if isinstance(made, Exception) and str(made) == expected else None
    except Exception:  # a class that takes more than a message, or whose code cannot be set
        return None


def _arguments(kind: type, message: str) -> tuple[Any, ...]:
    """What the class may have been given: the message, or, if it shows its argument's repr, that argument."""
    if not issubclass(kind, KeyError):
        return (message,)
    import ast

    try:
        return (ast.literal_eval(message), message)
    except (ValueError, SyntaxError):
        return (message,)
