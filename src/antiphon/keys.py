"""The keys: same call, same key, on any machine.

| key                     | made of                                                                       | see    |
|-------------------------|-------------------------------------------------------------------------------|--------|
| :func:`idempotency_key` | SHA-256 of ``namespace::tool::canonicalJson(params)::session::actor``         | R2, D4 |
| :func:`store_key`       | SHA-256 of ``["k1",tenant,workspace,scope,session,actor,namespace,tool,key]`` | D1     |
| :func:`llm_cache_key`   | SHA-256 of the fields of a recipe                                             | L1     |
| :func:`variant_digest`  | SHA-256 of what else shapes a model's answer                                  | D14    |
| :func:`turn_key`        | MD5 of ``tool:json.dumps(arguments, sort_keys=True)``                         | T4     |

All are lower-case hex. Each has a twin ``*_parts`` that returns what fed it, so that a mismatch can be explained.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, NamedTuple

from antiphon._params import ParamsRule
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

KEY_VERSION: Final = "k1"
"""First element of a store key: a release that changes canonicalisation counts on, and reads both for one TTL."""

_sha256 = hashlib.sha256
_new = tuple.__new__  # half the price of a named tuple's own constructor


class CallKeys(NamedTuple):
    """All keys and digests of one call."""

    store_key: str
    idempotency_key: str
    params_digest: str
    """Of the normalised parameters; what a conflict is decided by (TR-4)."""
    params_digest_exact: str
    """Of the parameters as they were given."""
    fingerprint: str
    """The one hash under which the call appears in results, logs and spans (R11): the store key's first 16 digits."""


QuickKeys = tuple[str, str, bytes, bytes | None]
"""Store key, idempotency key, the canonical parameters, and the parameters as given if they differ."""
_MEMO_KEPT = 1024
_MEMO_BYTES = 4096


class KeyMaker:
    """The keys of one tool for one session and actor, with everything prepared that does not depend on the call.

    >>> maker = KeyMaker(ToolSpec(name="pay", idempotent=False), session="s1", actor="a1")
    >>> maker.keys({"amount": 10}).store_key == maker.keys({"amount": 10.0, "retryCount": 2}).store_key
    True
    """

    __slots__ = (
        "_after",
        "_before",
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
    ) -> None:
        self.spec = spec
        self.place = (session, actor)
        self._rule = ParamsRule(spec)
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
        if spec.scope == "global":
            session = actor = ""
        self._before = _utf8(f"{namespace}::{tool}::")
        self._after = _utf8(f"::{session}::{actor}")
        self._fed = _sha256(self._before)
        self._store_fed = _sha256(self._store_before.encode())
        self._memo: dict[bytes, QuickKeys] = {}

    def keys(self, params: dict[str, Any]) -> CallKeys:
        """The computed key of a call, and what goes with it."""
        store, key, canonical, exact = self.quick(params)
        digest = _sha256(canonical).hexdigest()
        given = digest if exact is None else _sha256(exact).hexdigest()
        return CallKeys(store, key, digest, given, store[:16])

    def quick(self, params: dict[str, Any], remember: bool = False) -> QuickKeys:
        """Store key, idempotency key, the canonical parameters, and the given ones where those differ.

        With *remember*, parameters that were seen before are not hashed again.
        """
        volatile = self._volatile
        if volatile is not None and volatile.isdisjoint(params):
            canonical = exact = canonical_json(params)
        else:
            canonical, exact = self._rule.canonical(params)
        if remember:
            known = self._memo.get(canonical)
            if known is not None and exact is canonical:
                return known
        hashed = self._fed.copy()  # hashes that were fed the beginning are cheaper than new ones
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

    def keys_given(self, params: dict[str, Any], idempotency_key: str) -> CallKeys:
        """The same for a key that the caller or a hook supplied."""
        canonical, exact = self._rule.canonical(params)
        store = _sha256(self._given_before + canonical_json(idempotency_key) + b"]").hexdigest()
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
    """Where the claim on an intent is kept (D1): no separator inside a name can make two intents meet."""
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
    for node in level:  # grows while it is read
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
