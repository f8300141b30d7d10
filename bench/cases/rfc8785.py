"""Peers of the key functions: PyPI ``rfc8785``, and ``orjson`` with sorted keys (which is not RFC 8785)."""

import hashlib
import json
from pathlib import Path

import orjson
import rfc8785


def key(file):
    """Canonical bytes of the file's value, hashed."""
    value = json.loads(Path(file).read_bytes())
    return lambda: hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def orjson_sorted(file):
    """The distance to the fastest sorted JSON, hashed."""
    value = json.loads(Path(file).read_bytes())
    return lambda: hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
