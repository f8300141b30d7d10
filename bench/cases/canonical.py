"""Canonical JSON and keys of Antiphon."""

import hashlib
import json
from pathlib import Path

from antiphon.canonical import canonical_json
from antiphon.contract.spec import ToolSpec
from antiphon.keys import KeyMaker, llm_cache_key
from antiphon.llm.request import canonical_request


def _value(file):
    return json.loads(Path(file).read_bytes())


def key(file):
    """Canonical bytes of the file's value, hashed."""
    value = _value(file)
    return lambda: hashlib.sha256(canonical_json(value)).hexdigest()


def key_with_whole_floats(file):
    """The same with a number (1.0) that the fast path cannot print."""
    value = {**_value(file), "temperature": 1.0}
    return lambda: hashlib.sha256(canonical_json(value)).hexdigest()


def all_call_keys(file, effect=None):
    """Idempotency key, store key, both digests and fingerprint of a call."""
    params = _value(file)
    spec = ToolSpec(name="send", idempotent=False, effect=effect)
    maker = KeyMaker(spec, session="session-1", actor="actor-1")
    return lambda: maker.keys(params)


def llm_key(file):
    """The key of a canonical LLM request."""
    request = canonical_request(_value(file), provider="openai-chat")
    return lambda: llm_cache_key(request)


def llm_mapping(file):
    """A provider's request to the canonical request."""
    body = _value(file)
    return lambda: canonical_request(body, provider="openai-chat")
