"""The keys: same call, same key, on any machine.

| key                     | made of                                                                       | see    |
|-------------------------|-------------------------------------------------------------------------------|--------|
| :func:`idempotency_key` | SHA-256 of ``namespace::tool::canonicalJson(params)::session::actor``         | R2, D4 |
| :func:`store_key`       | SHA-256 of ``["k1",tenant,workspace,scope,session,actor,namespace,tool,key]`` | D1     |
| :func:`llm_cache_key`   | SHA-256 of the fields of a recipe                                             | L1     |
| :func:`variant_digest`  | SHA-256 of what else shapes a model's answer                                  | D14    |
| :func:`turn_key`        | MD5 of ``tool:json.dumps(arguments, sort_keys=True)``                         | T4     |

All are lower-case hex. Each has a twin ``*_parts`` that returns its input, so that a mismatch can be explained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from antiphon.canonical import canonical_json
from antiphon.contract.spec import ToolSpec
from antiphon.errors import CanonicalError, InvalidInput
from antiphon.llm.key import (
    Conversation,
    Recipe,
    llm_cache_key,
    llm_cache_key_parts,
    variant_digest,
    variant_parts,
)

__all__ = [
    "KEY_VERSION",
    "CallKeys",
    "Conversation",
    "KeyMaker",
    "Recipe",
    "idempotency_key",
    "idempotency_parts",
    "llm_cache_key",
    "llm_cache_key_parts",
    "params_digests",
    "store_key",
    "store_key_parts",
    "turn_key",
    "turn_key_parts",
    "variant_digest",
    "variant_parts",
]

VOLATILE: Final = frozenset({"clientTs", "retryCount", "traceparent"})
"""Top-level parameters that never belong to an intent, unless the tool marks them ``exact``."""
TYPED: Final = "$typed"
"""First element of the list that stands for parameters with values of types that JSON does not have."""
CALL_VERSION: Final = "c1"
"""First element of the name of a call by its id: tenant, workspace, session, actor, namespace, tool, id."""
KEYED_VERSION: Final = "k2"
"""First element of the store key of a call that names what it is about: tenant, workspace, namespace, tool, key."""
KEY_VERSION: Final = "k1"
"""First element of a store key: a release that changes canonicalisation increments it, and reads both for one TTL."""

_sha256 = hashlib.sha256


class CallKeys(NamedTuple):
    """All keys and digests of one call."""

    store_key: str
    idempotency_key: str
    params_digest: str
    """Of the normalised parameters; this decides about a conflict (TR-4)."""
    params_digest_exact: str
    """Of the parameters as given."""
    fingerprint: str
    """The store key's first 16 digits. It stays in the store: results, logs and spans show a keyed fingerprint."""


QuickKeys = tuple[str, str, bytes, bytes | None]
"""Store key, idempotency key, the canonical parameters, and the parameters as given if they differ."""
_MEMO_KEPT = 1024
_MEMO_BYTES = 4096


class KeyMaker:
    """The keys of one tool for one session and actor, with everything precomputed that does not depend on the call.

    >>> maker = KeyMaker(ToolSpec(name="pay", idempotent=False), session="s1", actor="a1")
    >>> maker.keys({"amount": 10}).store_key == maker.keys({"amount": 10.0, "retryCount": 2}).store_key
    True
    """

    __slots__ = (
        "_after",
        "_before",
        "_call_before",
        "_fed",
        "_given_before",
        "_memo",
        "_rule",
        "_store_before",
        "_store_fed",
        "_volatile",
        "place",
        "spec",
    )

    def __init__(
        self,
        spec: ToolSpec,
        *,
        session: str,
        actor: str,
        tenant: str = "default",
        workspace: str = "default",
        namespace: str | None = None,
        tool: str | None = None,
        keyed: bool = False,
    ) -> None:
        """*keyed*: for calls that name what they are about, no matter who makes them or in which session."""
        self.spec: ToolSpec = spec
        self.place: tuple[str, str] = (session, actor)
        self._rule = ParamsRule(spec, spec.key_ignore if keyed else ())
        self._volatile = self._rule.only_leaves_out
        namespace = spec.namespace if namespace is None else namespace
        tool = spec.name if tool is None else tool
        parts = store_key_parts(
            tenant=tenant,
            workspace=workspace,
            scope=spec.scope,
            session=session,
            actor=actor,
            namespace=namespace,
            tool=tool,
            idempotency_key="",
        )
        self._store_before = canonical_json(parts)[: -len(b'"]')].decode()
        self._given_before = self._store_before[:-1].encode()
        if keyed:
            self._given_before = canonical_json([KEYED_VERSION, tenant, workspace, namespace, tool])[:-1] + b","
        asked_by = [CALL_VERSION, tenant, workspace, session, actor, namespace, tool]
        self._call_before = canonical_json(asked_by)[:-1] + b","
        if spec.scope == "global":
            session = actor = ""
        self._before = _utf8(f"{namespace}::{tool}::")
        self._after = _utf8(f"::{session}::{actor}")
        self._fed = _sha256(self._before)
        self._store_fed = _sha256(self._store_before.encode())
        self._memo: dict[bytes, QuickKeys] = {}

    def keys(self, params: dict[str, Any]) -> CallKeys:
        """The computed key of a call, with its digests."""
        store, key, canonical, exact = self.quick(params)
        digest = _sha256(canonical).hexdigest()
        given = digest if exact is None else _sha256(exact).hexdigest()
        return CallKeys(store, key, digest, given, store[:16])

    def quick(self, params: dict[str, Any], remember: bool = False) -> QuickKeys:
        """Store key, idempotency key, the canonical parameters, and the given ones if those differ.

        With *remember*, parameters that were seen before are not hashed again.
        """
        volatile = self._volatile
        if volatile is not None and volatile.isdisjoint(params):
            try:
                canonical = exact = canonical_json(params)
            except CanonicalError as error:
                canonical, exact = self._rule.typed(params, error)
        else:
            canonical, exact = self._rule.canonical(params)
        if remember:
            known = self._memo.get(canonical)
            if known is not None and exact is canonical:
                return known
        hashed = self._fed.copy()  # copies of hashes that were fed the beginning are cheaper than new ones
        hashed.update(canonical + self._after)
        key = hashed.hexdigest()
        hashed = self._store_fed.copy()
        hashed.update(f'{key}"]'.encode())
        store = hashed.hexdigest()
        if exact is not canonical:
            return store, key, canonical, exact
        keys = (store, key, canonical, None)
        if remember and len(canonical) <= _MEMO_BYTES:
            if len(self._memo) >= _MEMO_KEPT:
                self._memo.clear()
            self._memo[canonical] = keys
        return keys

    def call_name(self, identity: str) -> str:
        """The name of one call by its id, whatever its arguments."""
        return _sha256(self._call_before + canonical_json(identity) + b"]").hexdigest()

    def keys_given(self, params: dict[str, Any], idempotency_key: str, kind: str = "") -> CallKeys:
        """The same for a key that the caller or a hook supplied, or that names what a call is about (*kind*)."""
        canonical, exact = self._rule.canonical(params)
        named = canonical_json(idempotency_key)
        if kind:
            named = canonical_json(kind) + b"," + named
        store = _sha256(self._given_before + named + b"]").hexdigest()
        digest = _sha256(canonical).hexdigest()
        return CallKeys(
            store,
            idempotency_key,
            digest,
            digest if exact is canonical else _sha256(exact).hexdigest(),
            store[:16],
        )


def idempotency_key(
    *, namespace: str, tool: str, params: dict[str, Any], session: str, actor: str, spec: ToolSpec | None = None
) -> str:
    """The documented key of a call (R2): equal calls of one session and actor get equal keys.

    >>> one = idempotency_key(namespace="shop", tool="pay", params={"a": 1, "b": 2}, session="s", actor="x")
    >>> two = idempotency_key(namespace="shop", tool="pay", params={"b": 2.0, "a": 1}, session="s", actor="x")
    >>> one == two
    True
    """
    parts = idempotency_parts(namespace=namespace, tool=tool, params=params, session=session, actor=actor, spec=spec)
    return _sha256(_utf8("::".join(parts.values()))).hexdigest()


def idempotency_parts(
    *, namespace: str, tool: str, params: dict[str, Any], session: str, actor: str, spec: ToolSpec | None = None
) -> dict[str, str]:
    """What :func:`idempotency_key` joins with ``::`` and hashes, in this order; empty session and actor if global."""
    shared = spec is not None and spec.scope == "global"
    canonical, _ = ParamsRule(spec).canonical(params)
    return {
        "namespace": namespace,
        "tool": tool,
        "params": canonical.decode(),
        "session": "" if shared else session,
        "actor": "" if shared else actor,
    }


def params_digests(params: dict[str, Any], spec: ToolSpec | None = None) -> tuple[str, str, bytes]:
    """Digest of the normalised parameters, digest of the given ones, and the normalised bytes."""
    canonical, exact = ParamsRule(spec).canonical(params)
    digest = _sha256(canonical).hexdigest()
    return digest, digest if exact is canonical else _sha256(exact).hexdigest(), canonical


def exact_params(params: dict[str, Any], spec: ToolSpec | None = None) -> bytes | tuple[str, str]:
    """The parameters as given: canonical JSON, or two digests if they contain values of other types."""
    if spec is None or not spec.serialisers:
        try:
            return canonical_json(params)
        except CanonicalError:
            pass  # types other than JSON's
    digest = _sha256(ParamsRule(spec).canonical(params)[1]).hexdigest()
    return digest, digest


def store_key(
    *,
    namespace: str,
    tool: str,
    idempotency_key: str,
    session: str | None,
    actor: str | None,
    tenant: str = "default",
    workspace: str = "default",
    scope: str = "session",
) -> str:
    """Where the claim on an intent is kept (D1): no separator inside a name can make two intents collide."""
    parts = store_key_parts(
        namespace=namespace,
        tool=tool,
        idempotency_key=idempotency_key,
        session=session,
        actor=actor,
        tenant=tenant,
        workspace=workspace,
        scope=scope,
    )
    return _sha256(canonical_json(parts)).hexdigest()


def store_key_parts(
    *,
    namespace: str,
    tool: str,
    idempotency_key: str,
    session: str | None,
    actor: str | None,
    tenant: str = "default",
    workspace: str = "default",
    scope: str = "session",
) -> list[str | None]:
    """The array whose canonical JSON :func:`store_key` hashes; under ``global`` session and actor are null (R4)."""
    if scope not in ("session", "global"):
        raise InvalidInput(f"The scope is 'session' or 'global', not {scope!r}.", path="$.scope")
    if scope == "global":
        session = actor = None
    return [KEY_VERSION, tenant, workspace, scope, session, actor, namespace, tool, idempotency_key]


def key_text(value: Any) -> tuple[str, str]:
    """What a call is about, as text, and whether that is a string itself or JSON: a number is not its digits.

    >>> key_text("order-1042"), key_text(1042)
    (('order-1042', 'text'), ('1042', 'json'))
    """
    if isinstance(value, str):
        text = str.__str__(value)
        if not text.strip():
            raise InvalidInput("The key is empty.", path="$.key")
        _utf8(text)
        return text, "text"
    if value is None or isinstance(value, (bool, float)):
        raise InvalidInput(f"A key is a text, a whole number or an id, not {value!r}.", path="$.key")
    if hasattr(value, "__len__") and not len(value):
        raise InvalidInput("The key is empty.", path="$.key")
    if isinstance(value, (tuple, list)) and any(part is None or part == "" for part in value):
        raise InvalidInput("A part of the key is empty.", hint="Calls without it would share one key.", path="$.key")
    from antiphon._arguments import Unwritable, written

    try:
        fields, _ = written({"key": value})
    except Unwritable:
        raise InvalidInput(f"A {type(value).__name__} is no key.", path="$.key") from None
    return canonical_json(fields["key"]).decode(), "json"


def turn_key(tool: str, arguments: Any) -> str:
    """The key of turn control (T4); the order of the arguments never matters."""
    return hashlib.md5(_utf8(turn_key_parts(tool, arguments)), usedforsecurity=False).hexdigest()


def turn_key_parts(tool: str, arguments: Any) -> str:
    """The text :func:`turn_key` hashes; arguments that are not JSON raise ``CanonicalError``."""
    try:
        text = json.dumps(arguments, sort_keys=True, allow_nan=False)
        if _has_text_names(arguments):
            return f"{tool}:{text}"
        reason = "a name is not a string"
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error)
    canonical_json(arguments)  # raises with the path
    raise CanonicalError(f"The arguments of {tool!r} are not JSON: {reason}.")


def _has_text_names(value: Any) -> bool:
    level = [value]
    for node in level:  # grows while it is iterated
        if isinstance(node, dict):
            if not all(isinstance(name, str) for name in node):
                return False
            level.extend(node.values())
        elif isinstance(node, (list, tuple)):
            level.extend(node)
    return True


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"A name has a lone surrogate at index {error.start}.") from None


# -- which differences between two sets of parameters do not matter (R3, D4) ----------------------------------------


class ParamsRule:
    """How one tool's parameters are normalised: volatile ones dropped, white space of insensitive ones squeezed.

    Paths are dotted (``"options.note"``), apply to each item of a list, and cover everything below them. ``exact``
    takes precedence over everything else.
    """

    __slots__ = (
        "_everywhere",
        "_exact",
        "_insensitive",
        "_names",
        "_paths",
        "_serialisers",
        "_squeezes",
        "only_leaves_out",
    )

    def __init__(self, spec: ToolSpec | None, ignore: tuple[str, ...] = ()) -> None:
        self._serialisers: Mapping[str, Callable[[Any], Any]] = (spec.serialisers or {}) if spec is not None else {}
        self._exact: frozenset[str] = frozenset(spec.exact) if spec is not None else frozenset()
        self._insensitive: frozenset[str] = frozenset(spec.insensitive) if spec is not None else frozenset()
        self._everywhere = spec is not None and spec.effect == "read"
        self._squeezes = self._everywhere or bool(self._insensitive)
        given = (VOLATILE | set(spec.volatile) if spec is not None else VOLATILE) - self._exact | set(ignore)
        volatile = frozenset(path.removeprefix("$.") for path in given)
        self._names = frozenset(name for name in volatile if "." not in name)
        more = self._squeezes or self._serialisers or any("." in name for name in volatile)
        self.only_leaves_out: frozenset[str] | None = None if more else self._names
        """The names of the dropped parameters, if dropping is all that this rule does."""
        self._paths = tuple(tuple(path.split(".")) for path in sorted(volatile) if "." in path)

    def canonical(self, params: dict[str, Any]) -> tuple[bytes, bytes]:
        """Canonical JSON of the normalised and of the given parameters: one object if they are equal."""
        if not isinstance(params, dict):
            raise InvalidInput(f"The parameters must be an object, not a {type(params).__name__}.", path="$.params")
        if self._serialisers:
            from antiphon._arguments import serialised

            params = serialised(params, self._serialisers)
        try:
            exact = canonical_json(params)
        except CanonicalError as error:
            return self.typed(params, error)
        kept = self._left_out(params)
        if self._squeezes and not _surely_tidy(exact):
            kept = self._tidy(kept)
        return (exact if kept is params else canonical_json(kept)), exact

    def typed(self, params: dict[str, Any], error: CanonicalError) -> tuple[bytes, bytes]:
        """The same for parameters that are not plain JSON: always two objects.

        What is hashed is a list, which parameters never are: no plain JSON can collide with the tags of a type.
        """
        from antiphon._arguments import OBJECT, Unwritable, written

        kept = self._left_out(params)
        try:
            given, has_tags = written(params, self._names)
            tidy, tags_count = written(self._tidy(kept) if self._squeezes else kept)
        except Unwritable:
            raise error from None
        for path in self._paths:  # also inside objects of classes
            tidy = _without(tidy, path, OBJECT if tags_count else None)
        return (
            canonical_json([TYPED, tidy] if tags_count else tidy),
            canonical_json([TYPED, given] if has_tags else given),
        )

    def _left_out(self, params: dict[str, Any]) -> dict[str, Any]:
        """*params* without volatile parameters; *params* itself if there are none."""
        kept = params
        if not self._names.isdisjoint(params):
            kept = {name: value for name, value in params.items() if name not in self._names}
        for path in self._paths:
            kept = _without(kept, path)
        return kept

    def _tidy(self, params: dict[str, Any]) -> dict[str, Any]:
        """*params* with white space squeezed where it does not matter."""
        try:
            named = self._exact or self._insensitive
            return self._squeezed(params, self._everywhere, "") if named else _all_squeezed(params)  # type: ignore[no-any-return]
        except RecursionError:
            raise CanonicalError("The value is nested deeper than the interpreter's stack allows here.") from None

    def _squeezed(self, value: Any, on: bool, path: str) -> Any:
        """*value* with white space trimmed and collapsed where that is *on*; itself if there was nothing to do."""
        if isinstance(value, str):
            tidy = " ".join(value.split()) if on else value
            return value if tidy == value else tidy
        if isinstance(value, dict):
            pairs = [(name, item, f"{path}.{name}" if path else name) for name, item in value.items()]
        elif isinstance(value, (list, tuple)):
            pairs = [(index, item, path) for index, item in enumerate(value)]
        else:
            return value
        copy: Any = None
        for place, item, where in pairs:
            if where in self._exact:
                continue
            tidy = self._squeezed(item, on or where in self._insensitive, where)
            if tidy is not item:
                if copy is None:
                    copy = dict(value) if isinstance(value, dict) else list(value)
                copy[place] = tidy
        return value if copy is None else copy


def _surely_tidy(data: bytes) -> bool:
    """Whether no string in canonical JSON can have white space to squeeze; ``False`` means: check each.

    In ASCII text without escapes the only white space is the space, and it occurs inside strings only.
    """
    return data.isascii() and b"\\" not in data and b"  " not in data and b'" ' not in data and b' "' not in data


def _all_squeezed(value: Any) -> Any:
    """*value* with the white space of all its strings squeezed; itself if there was nothing to do."""
    is_object = isinstance(value, dict)
    copy: Any = None
    for place, item in value.items() if is_object else enumerate(value):
        if isinstance(item, str):
            tidy: Any = " ".join(item.split())
            if tidy == item:
                continue
        elif isinstance(item, (dict, list, tuple)):
            tidy = _all_squeezed(item)
            if tidy is item:
                continue
        else:
            continue
        if copy is None:
            copy = dict(value) if is_object else list(value)
        copy[place] = tidy
    return value if copy is None else copy


def _without(value: Any, path: tuple[str, ...], tag: str | None = None) -> Any:
    """*value* without the field at *path*; itself if there is none. *tag* names objects of classes."""
    if isinstance(value, dict):
        name = path[0]
        if tag is not None and tag in value and len(value) == 1:  # of a class: its fields
            inner = _without(value[tag], path, tag)
            return value if inner is value[tag] else {tag: inner}
        if name not in value:
            return value
        if len(path) == 1:
            return {key: item for key, item in value.items() if key != name}
        inner = _without(value[name], path[1:], tag)
        return value if inner is value[name] else {**value, name: inner}
    if isinstance(value, (list, tuple)):
        items = [_without(item, path, tag) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value
