"""What stands where a secret stood: ``[secret:KIND:digest]``, or ``[secret:KIND]`` for what could be guessed."""

from __future__ import annotations

import hmac
import math
import re

PLACEHOLDER = re.compile(r"\[secret:([a-z0-9_]{1,40})(?::([0-9a-f]{16}))?\]")
"""A whole placeholder; group 1 is the kind, group 2 the digest if it has one."""

CONSTANT_KINDS = frozenset({"pin", "cvv", "otp", "ssn", "phone", "card", "iban"})
"""So few values are possible that a digest under a known salt would give them away (D21)."""

_GUESSABLE_BITS = 64.0
_DIGITS, _LETTERS, _OTHER = 10, 26, 32


def guessable(secret: str) -> bool:
    """Whether trying all texts of this length and alphabet is within reach of an attacker who has the salt."""
    size = 0
    if any("a" <= c <= "z" for c in secret):
        size += _LETTERS
    if any("A" <= c <= "Z" for c in secret):
        size += _LETTERS
    if any("0" <= c <= "9" for c in secret):
        size += _DIGITS
    if not secret.isalnum():
        size += _OTHER
    return len(secret) * math.log2(size or _OTHER) < _GUESSABLE_BITS


def digest(secret: str, salt: bytes) -> str:
    """The keyed digest that a placeholder shows."""
    return hmac.digest(salt, secret.encode("utf-8", "surrogatepass"), "sha256")[:8].hex()


def placeholder(kind: str, secret: str, salt: bytes) -> str:
    """The placeholder for *secret*; equal secrets give equal digests, whatever their kind."""
    if guessable(secret):
        return f"[secret:{kind}]"
    return f"[secret:{kind}:{digest(secret, salt)}]"
