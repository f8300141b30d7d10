"""A registered tool: its function, what it declares, and how a Python call is mapped to named parameters."""

from __future__ import annotations

import functools
import inspect
import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from antiphon._arguments import serialised
from antiphon._gateway import codec
from antiphon._gateway.approval_rule import ApprovalRule
from antiphon._gateway.context import CallContext
from antiphon._gateway.point import has_point
from antiphon._gateway.settings import Settings, ToolOverride
from antiphon.contract.spec import BreakerPolicy, DidNotHappen, RetryPolicy, Reuse, ToolSpec, Ttls
from antiphon.decide.classify import classify
from antiphon.decide.failure import Failure, Phase
from antiphon.errors import InvalidInput, class_name

Kind = Literal["sync", "async", "generator", "async_generator"]
BIND = "Register the bound one, below the class: gateway.tool(idempotent=...)(thing.method)."
_OPTIONAL = re.compile(r"^(?:typing\.)?Optional\[(.*)\]$")
_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def kind_of(function: Callable[..., Any]) -> Kind:
    """How the function has to be called; partials are unwrapped."""
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    target = target if inspect.isroutine(target) else getattr(target, "__call__", target)  # noqa: B004
    if inspect.isasyncgenfunction(target):
        return "async_generator"
    if inspect.isgeneratorfunction(target):
        return "generator"
    if inspect.iscoroutinefunction(target):
        return "async"
    return "sync"


def awaiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for event loops; one behind a plain decorator, which returns a coroutine, is awaited."""
    inner = _innermost(function)
    if kind_of(function) != "sync" or kind_of(inner) != "async":
        return function

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    return awaited


class Tool:
    """One tool of one gateway, with everything that can be computed once."""

    def __init__(self, function: Callable[..., Any], spec: ToolSpec, settings: Settings) -> None:
        self.function: Callable[..., Any] = function
        self.kind: Kind = kind_of(function)
        self.origin: tuple[str, str] = _origin(function)
        """Module and qualified name: the same function, if its module was reloaded."""
        self.streams: bool = self.kind in ("generator", "async_generator")
        self.full_name: str = f"{spec.namespace}/{spec.name}"
        self.signature: inspect.Signature | None = _signature(function)
        self.context_param: str | None = _context_param(self.signature)
        params = (
            [p for p in self.signature.parameters.values() if p.name != self.context_param] if self.signature else []
        )
        if params and params[0].name in ("self", "cls") and params[0].kind in _PLAIN:
            raise InvalidInput(
                f"{self.full_name} is an unbound method: {params[0].name!r} is not a call argument.",
                hint=BIND,
            )
        self.is_plain: bool = self.signature is not None and all(p.kind in _PLAIN for p in params)
        """Whether each of its parameters can be given by name, and no others."""
        self.quick_bind: Callable[..., dict[str, Any]] | None = _binder(function, params) if self.is_plain else None
        """A function with the tool's own signature that returns the parameters by name."""
        self.required: tuple[str, ...] = tuple(
            p.name for p in params if p.default is p.empty and p.kind not in _COLLECTING
        )
        """The parameters that a call must have."""
        anything = self.signature is None or any(p.kind is p.VAR_KEYWORD for p in params)
        self.accepts: frozenset[str] | None = None if anything else frozenset(p.name for p in params)
        """Those it may have; ``None``: any."""
        self.undo: Any = None
        """What undoes its calls (:class:`~antiphon._gateway.undo.Undo`), if declared."""
        self.certain: tuple[type[Exception], ...] = (*_certain(spec), DidNotHappen)
        """Exceptions that mean: no effect."""
        self.has_point: bool = has_point(function)
        """Whether it says where its effect begins."""
        self.key_of: Callable[[dict[str, Any]], Any] | None = _key_function(spec, self.accepts)
        """What a call is about, from its arguments; ``None`` if the tool does not say."""
        self.reconcile_wants_context: bool = spec.reconcile is not None and takes_two(spec.reconcile)
        _check_reconcile(spec, params)
        self.decode: Callable[[bytes], Any] = codec.decoder(_return_type(function, self.signature), self.full_name)
        self.spec: ToolSpec = spec
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Resolve every setting by precedence: code, then the tool's override, then the gateway's, then defaults."""
        spec = self.spec
        override = settings.tools.get(self.full_name) or settings.tools.get(spec.name) or ToolOverride()
        self.retry: RetryPolicy = spec.retry or override.retry or settings.retry
        self.listed: ToolSpec = spec if self.retry is spec.retry else msgspec.structs.replace(spec, retry=self.retry)
        """The spec with the effective error lists."""
        self.timeout: float | None = spec.timeout if spec.timeout is not None else override.timeout
        self.ttl: Ttls = spec.ttl if spec.ttl != Ttls() else (override.ttl or settings.ttl or spec.ttl)
        self.renew_every: float = max(0.01, self.ttl.lease_ms / 3000)
        policy: BreakerPolicy = spec.breaker or override.breaker or settings.breaker or spec.breaker_policy
        if override.forced_open and not policy.forced_open:
            policy = msgspec.structs.replace(policy, forced_open=True)
        self.breaker_policy: BreakerPolicy = policy
        outage = spec.on_store_outage or override.on_store_outage
        self.approval_rule: ApprovalRule | None = (
            None if spec.approve is None else ApprovalRule(spec, settings.approvals, self._all_defaults(), self.accepts)
        )
        """Which calls a person must approve; ``None``: none."""
        safe = outage == "open" if outage else (spec.idempotent and spec.effect == "read")
        self.safe_outage: bool = safe and self.approval_rule is None
        self.reuse_default: Reuse | float | None = spec.reuse if spec.reuse is not None else override.reuse

    def _all_defaults(self) -> dict[str, Any]:
        """The values of parameters that a call does not give."""
        known = self.signature.parameters.values() if self.signature is not None else ()
        return {p.name: p.default for p in known if p.default is not p.empty and p.name != self.context_param}

    def misfit(self, params: dict[str, Any]) -> tuple[str, str]:
        """The first parameter that does not fit the function's signature, and why; empty if all do."""
        for name in self.required:
            if name not in params:
                return name, f"{self.full_name} needs the parameter {name!r}"
        if self.accepts is not None and not params.keys() <= self.accepts:
            name = min(params.keys() - self.accepts)
            return name, f"{self.full_name} has no parameter {name!r} ({it_has(self.accepts)})"
        return "", ""

    def failure(self, error: BaseException, now_ms: int) -> Failure:
        """Classify an exception of the tool."""
        if not isinstance(error, self.certain):
            return classify(error, self.listed, wall_ms=now_ms)
        phase: Phase = "not_sent" if isinstance(error, DidNotHappen) else "answered"
        kind = type(error)
        return Failure(kind.__name__, str(error), "answer", False, phase, exception=class_name(kind))

    def written(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters in their recorded form, with each serialiser applied to its own."""
        return serialised(params, self.spec.serialisers) if self.spec.serialisers else params

    def bind(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """:attr:`quick_bind` for any signature: named parameters of a Python call, defaults included."""
        if self.signature is None:
            if args:
                raise InvalidInput(f"{self.full_name} has no readable signature: pass its parameters by name.")
            return kwargs
        signature = self.signature
        if self.context_param is not None and self.context_param not in kwargs:
            signature = signature.replace(
                parameters=[p for p in signature.parameters.values() if p.name != self.context_param]
            )
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        params = dict(bound.arguments)
        for parameter in signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                more = params.pop(parameter.name)
                if both := params.keys() & more.keys():
                    raise InvalidInput(f"{self.full_name} is given two values named {min(both)!r}.")
                params.update(more)
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                params[parameter.name] = list(params[parameter.name])
        return params

    def invoke(self, params: dict[str, Any], context: CallContext | None) -> Any:
        """Call the function with named parameters (and its context, if it asks for one)."""
        extra = (
            {self.context_param: context}
            if self.context_param is not None and self.context_param not in params
            else None
        )
        if self.is_plain or self.signature is None:
            return self.function(**params, **extra) if extra else self.function(**params)
        args: list[Any] = []
        rest = {**params, **(extra or {})}
        for parameter in _by_position(self.signature, rest):
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(rest.pop(parameter.name))
            else:
                args.append(rest.pop(parameter.name, parameter.default))
        return self.function(*args, **rest)


def _by_position(signature: inspect.Signature, given: dict[str, Any]) -> list[inspect.Parameter]:
    """The parameters that must be passed by position: up to the last given one that has no other way."""
    found: list[inspect.Parameter] = []
    until = 0
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            found.append(parameter)
            until = len(found) if given.setdefault(parameter.name, ()) else until
        elif parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            found.append(parameter)
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and parameter.name in given:
                until = len(found)
    for parameter in found[until:]:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            del given[parameter.name]
    return found[:until]


def it_has(accepts: frozenset[str]) -> str:
    """The parameters of a tool, for a message about one that it does not have."""
    return f"it has: {', '.join(sorted(accepts)) or 'none'}"


def _key_function(spec: ToolSpec, accepts: frozenset[str] | None) -> Callable[[dict[str, Any]], Any] | None:
    """The declared key as a function of the parameters; one that names only some of them gets only those."""
    declared: Any = spec.key
    for name in (*spec.key_ignore, *((declared,) if isinstance(declared, str) else ())):
        if accepts is not None and name.partition(".")[0] not in accepts:
            raise InvalidInput(f"{spec.name!r} has no parameter {name!r} to make a key of ({it_has(accepts)}).")
    if declared is None:
        return None
    if isinstance(declared, str):
        wanted: str = declared
        return lambda params: params.get(wanted)
    if not callable(declared):
        raise InvalidInput(
            f"The key of {spec.name!r} is {declared!r}.",
            hint='Name a parameter (key="order") or give a function of the parameters (key=lambda order, **_: order).',
        )
    signature = _signature(declared)
    kinds = [p.kind for p in signature.parameters.values()] if signature is not None else []
    if signature is None or inspect.Parameter.VAR_KEYWORD in kinds:
        return lambda params: declared(**params)
    names = tuple(signature.parameters)
    if accepts is not None and not accepts.issuperset(names):
        missing = ", ".join(sorted(set(names) - accepts))
        raise InvalidInput(
            f"The key of {spec.name!r} takes {missing}, which the tool does not have ({it_has(accepts)})."
        )
    if inspect.Parameter.POSITIONAL_ONLY in kinds or inspect.Parameter.VAR_POSITIONAL in kinds:
        raise InvalidInput(f"The key of {spec.name!r} must take its parameters by name.")
    return lambda params: declared(**{name: params[name] for name in names if name in params})


def _certain(spec: ToolSpec) -> tuple[Any, ...]:
    if not isinstance(spec.certain_errors, (tuple, list, set, frozenset)):
        raise InvalidInput(
            f"certain_errors of {spec.name!r} must be a tuple of exception classes.",
            hint=f"Write certain_errors=({getattr(spec.certain_errors, '__name__', 'CardDeclined')},).",
        )
    for kind in spec.certain_errors:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise InvalidInput(
                f"certain_errors of {spec.name!r} holds {kind!r}, which is not an exception class.",
                hint="Write the classes themselves: certain_errors=(CardDeclined,).",
            )
    return spec.certain_errors


def _binder(function: Callable[..., Any], params: list[inspect.Parameter]) -> Callable[..., dict[str, Any]] | None:
    """Python's own argument parsing, three times as fast as doing it by hand, and with its own error messages."""
    if not all(p.name.isidentifier() and not p.name.startswith("_antiphon") for p in params):
        return None
    name = getattr(function, "__name__", "")
    title = name if name.isidentifier() and not keyword.iskeyword(name) else "call"
    words: list[str] = []
    for p in params:
        if p.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(p.name if p.default is inspect.Parameter.empty else f"{p.name}=_antiphon_defaults['{p.name}']")
    body = ", ".join(f"'{p.name}': {p.name}" for p in params)
    defaults = {p.name: p.default for p in params if p.default is not inspect.Parameter.empty}
    space: dict[str, Any] = {"_antiphon_defaults": defaults}
    exec(f"def {title}({', '.join(words)}): return {{{body}}}", space)  # noqa: S102 - names come from a signature
    made: Callable[..., dict[str, Any]] = space[title]
    return made


def _innermost(function: Any) -> Any:
    """The function behind partials and decorators."""
    while True:
        inner = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)
        if inner is None:
            return function
        function = inner


def _origin(function: Any) -> tuple[str, str]:
    function = _innermost(function)
    named = function if hasattr(function, "__qualname__") else type(function)
    return str(getattr(named, "__module__", "")), str(named.__qualname__)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _check_reconcile(spec: ToolSpec, params: list[inspect.Parameter]) -> None:
    """Reject one that takes the tool's own parameters: it would look up the wrong thing and say "it did not happen"."""
    signature = None if spec.reconcile is None else _signature(spec.reconcile)
    if spec.reconcile is None or signature is None:
        return
    own = {p.name: p for p in params}
    taken = list(signature.parameters.values())
    given = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:2]
    wrong = any(
        p.name in own and not (_takes_context(p) if number else _takes_all(p, own[p.name]))
        for number, p in enumerate(given)
    )
    if not wrong and not takes_two(spec.reconcile):
        try:
            signature.bind({})
        except TypeError:
            wrong = True
    if wrong:
        raise InvalidInput(
            f"reconcile of {spec.name!r} takes {', '.join(p.name for p in taken) or 'nothing'}.",
            hint="It is given all parameters as one dict, and the context if it takes two: def reconcile(params).",
        )


def _takes_all(parameter: inspect.Parameter, own: inspect.Parameter) -> bool:
    """Whether the first parameter of a ``reconcile``, called like one of the tool's, is meant for all of them."""
    if parameter.name == "params":
        return True
    return _is_mapping(parameter) and own.annotation is not own.empty and not _is_mapping(own)


def _takes_context(parameter: inspect.Parameter) -> bool:
    """Whether the second parameter is meant for the context."""
    return parameter.name in ("ctx", "context") or _is_context(parameter)


def _is_mapping(parameter: inspect.Parameter) -> bool:
    annotation = getattr(parameter.annotation, "__origin__", parameter.annotation)
    if isinstance(annotation, str):
        return annotation.partition("[")[0].split(".")[-1] in ("dict", "Dict", "Mapping", "MutableMapping")
    return isinstance(annotation, type) and issubclass(annotation, Mapping)


def takes_two(function: Callable[..., Any]) -> bool:
    """Whether a ``reconcile`` function also wants the context of the call in question."""
    signature = _signature(function)
    if signature is None:
        return False
    try:
        signature.bind({}, None)
    except TypeError:
        return False
    return True


def _context_param(signature: inspect.Signature | None) -> str | None:
    """The parameter that takes the call's context: by its type, or an unannotated one called ``ctx``."""
    for parameter in signature.parameters.values() if signature else ():
        if _is_context(parameter):
            return parameter.name
        if parameter.name == "ctx" and parameter.annotation is parameter.empty and parameter.kind in _PLAIN:
            return parameter.name
    return None


def _is_context(parameter: inspect.Parameter) -> bool:
    """Whether it is annotated as ``CallContext``, or as one that may be ``None``."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        parts = _OPTIONAL.sub(r"\1", annotation).split("|")
        return any(part.strip().split(".")[-1] == "CallContext" for part in parts)
    inner = set(getattr(annotation, "__args__", ()))
    if hasattr(annotation, "__metadata__"):  # Annotated
        return inner == {CallContext}
    return annotation is CallContext or inner == {CallContext, type(None)}


def name_of(function: Callable[..., Any]) -> str:
    """The name of a tool if none is given."""
    name = getattr(function, "__name__", None)
    if isinstance(name, str) and name != "<lambda>":
        return name
    raise InvalidInput("This callable has no name; write @gateway.tool('name', idempotent=...).")


def _return_type(function: Callable[..., Any], signature: inspect.Signature | None) -> Any:
    if signature is None or signature.return_annotation is inspect.Signature.empty:
        return None
    if not isinstance(signature.return_annotation, str):
        return signature.return_annotation
    import typing

    try:
        return typing.get_type_hints(function).get("return")
    except Exception:  # a name that only type checkers can see
        return None
