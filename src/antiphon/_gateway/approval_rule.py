"""Whether calls of a tool need a person, and what an approval of one is bound to."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from antiphon._gateway.settings import ApprovalPolicy
from antiphon.canonical import canonical_json
from antiphon.contract.approval import Approval
from antiphon.contract.spec import ToolSpec
from antiphon.decide.claim import ApprovalRequirement
from antiphon.errors import InvalidInput
from antiphon.keys import exact_params

log = logging.getLogger("antiphon.gateway")

MAY_CHANGE = "(may change)"
"""The name of the ``approve_ignore`` arguments among those that a person is shown."""


class ApprovalRule:
    """What one tool declares about approval, combined with the policies of the configuration."""

    __slots__ = ("_defaults", "_needs", "_spec", "approver", "bind", "policy", "ttl_ms", "version", "wait_s")

    def __init__(
        self, spec: ToolSpec, policies: Mapping[str, ApprovalPolicy], defaults: Mapping[str, Any], accepts: Any
    ) -> None:
        self._spec = spec
        self._defaults = {name: _plain(value) for name, value in defaults.items() if name not in spec.approve_ignore}
        self.bind: str = spec.approve_bind
        self.ttl_ms: int = int(spec.approval_ttl * 1000)
        self.wait_s: float = spec.approval_wait
        self.approver: Callable[..., Any] | None = spec.approver
        self.policy: str
        self.version: str
        self.policy, self.version, self._needs = _policy(spec, policies)
        unknown = sorted(set(spec.approve_ignore) - accepts) if accepts is not None else []
        if unknown:
            raise InvalidInput(f"approve_ignore of {spec.name!r} names {unknown[0]!r}, which the tool does not have.")

    def needs(self, arguments: dict[str, Any]) -> bool:
        """Whether a person must approve this call; a policy that fails does not let it pass."""
        try:
            return bool(self._needs(self.with_defaults(arguments)))
        except Exception as error:
            name = type(error).__name__  # its message may quote the arguments
            log.error("the approval policy of %s failed (%s), so the call needs approval", self._spec.name, name)
            return True

    def with_defaults(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What approval is asked for: the arguments, with defaults filled in."""
        return arguments | {name: value for name, value in self._defaults.items() if name not in arguments}

    def shown(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a person is shown: arguments that the approval does not bind are listed separately."""
        given = self.with_defaults(arguments)
        free = {name: given.pop(name) for name in self._spec.approve_ignore if name in given}
        return {**given, MAY_CHANGE: free} if free else given

    def bound_to(self, key: str, arguments: dict[str, Any]) -> str:
        """What the digest of an approval is computed from: the intent, and the exact arguments after defaults."""
        given = self.with_defaults(arguments)
        for name in self._spec.approve_ignore:
            given.pop(name, None)
        params = exact_params(given, self._spec)
        return f"{key}\n{params.decode() if isinstance(params, bytes) else params[1]}"


@dataclass(slots=True, eq=False)
class ApprovalState:
    """What is known about the approval of one call."""

    requirement: ApprovalRequirement
    spending: Approval | None = None
    """The approval that the pending claim request replaces."""
    seen_ms: int = 0
    """When it was read, by the store's time."""
    spent: Approval | None = None
    """The approval that this call runs with."""
    approval: Approval | None = None
    """The one that waits for a decision."""
    is_new: bool = False
    """Whether this delivery asked: nobody can have decided yet."""
    consulted: bool = False
    pause_s: float = 0.05
    """Seconds until the call reads the record again."""
    until: float = 0.0
    """Until when the call itself waits, on the monotonic clock."""


def _plain(value: Any) -> Any:
    """A default in a form that can be serialised."""
    try:
        canonical_json(value)
    except InvalidInput:
        return repr(value)
    return value


def _policy(
    spec: ToolSpec, policies: Mapping[str, ApprovalPolicy]
) -> tuple[str, str, Callable[[dict[str, Any]], bool]]:
    approve: Any = spec.approve
    if approve == "always":
        return "always", spec.approve_version, lambda _: True
    if isinstance(approve, str):
        named = policies.get(approve)
        if named is None:
            known = ", ".join(["always", *sorted(policies)])
            raise InvalidInput(
                f"approve={approve!r} of {spec.name!r} names no policy (there are: {known}).",
                hint=f'Add it to antiphon.toml: [approvals.policies.{approve}] version = "1".',
            )
        return approve, named.version, named.needs
    if not callable(approve) or inspect.iscoroutinefunction(approve):
        raise InvalidInput(
            f"approve of {spec.name!r} must be 'always', the name of a policy, or a plain function of the arguments.",
            hint="Write approve=lambda amount, **_: amount > 100. A function that decides is approver=.",
        )
    if not spec.approve_version:
        raise InvalidInput(
            f"approve of {spec.name!r} is a function: say which version of it this is.",
            hint='Write approve_version="1", and change it with the rule: open approvals are void then.',
        )
    return "function", spec.approve_version, _by_name(approve)


def _by_name(function: Callable[..., Any]) -> Callable[[dict[str, Any]], bool]:
    """Give the predicate the parameters that it names."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return lambda arguments: bool(function(**arguments))
    names = [one.name for one in parameters]
    return lambda arguments: bool(function(**{name: arguments[name] for name in names if name in arguments}))
