"""The identity of one logical effect of a node (Layer 2): unchanged by retries, resumption and restarts."""

from __future__ import annotations

import base64
import hashlib

ACTIVITY_RECIPE = "openwop:activity:v2"
_STRIDE = 1024
"""Logical calls one execution of a node may make."""


def logical_invocation_id(tenant: str, run: str, node: str, ordinal: int, provider_key: str) -> str:
    """What a provider is given as its idempotency key, and the claim is made under.

    >>> logical_invocation_id("t", "r", "n", 0, "mail")
    'W28HqboteHPCDc5SCJ80Wp5cT0x5Ikm1dAZ7q7hbLSc'
    """
    parts = (ACTIVITY_RECIPE, tenant, run, node, str(ordinal), provider_key)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def ordinal(execution: int, call: int = 0) -> int:
    """The number of a logical effect: the *call*-th of the *execution*-th time the node runs (both from 0)."""
    return execution * _STRIDE + call
