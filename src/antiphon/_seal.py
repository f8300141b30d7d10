"""Authenticated encryption for results that may not be written in the clear (R14): AES-256-GCM of ``cryptography``.

The key is derived from the configured secret with HKDF-SHA-256. Form and context are authenticated together with the
data, so a value that was moved from another record is refused. A sealed text is ``s2.KEYID.`` and the base64 of nonce,
ciphertext and tag. Values of release 0.1.0 (``s1.``) can still be read. See decision 0020.

A key file has one key per line. The first one seals; the others only unseal what was sealed before a rotation. A
running process checks its file before it seals (at most once in two milliseconds), and when it meets a key that it does
not know.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import stat
import tempfile
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import TypeVar

from antiphon.errors import ConfigError, StoreError

KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_random = os.urandom
_FILE_HEAD = "antiphon-seal-key-1 "
_LOOK_EVERY_S = 0.002
"""How often a process that seals checks its key file: a check costs as much as sealing."""


class Sealer:
    """Seals under one key, and unseals under that one and any *older* one.

    >>> sealer = Sealer(bytes(32))
    >>> sealer.unseal(sealer.seal(b"the result", context=b"record 1"), context=b"record 1")
    b'the result'
    """

    __slots__ = ("_current", "_file", "_keys", "_look_at", "_seen")

    def __init__(self, key: bytes, older: Sequence[bytes] = ()) -> None:
        self._file: Path | None = None
        self._look_at = 0.0
        self._seen: object = None
        self._use((key, *older))

    def _use(self, keys: Sequence[bytes]) -> None:
        self._keys = {one.key_id: one for one in map(_Key, reversed(keys))}
        self._current = self._keys[key_id_of(keys[0])]

    def for_replay(self) -> Sealer:
        """A sealer that opens the originals of recordings, and nothing else that this key seals."""
        others = (one.replay_key for one in self._keys.values() if one is not self._current)
        return Sealer(self._current.replay_key, tuple(others))

    @property
    def replay_key(self) -> bytes:
        """The key of :meth:`for_replay` that seals."""
        return self._current.replay_key

    @property
    def key_ids(self) -> list[str]:
        """The ids of all keys that unseal."""
        return list(self._keys)

    @property
    def key_id(self) -> str:
        """Identifies the key that seals without revealing it."""
        return self._current.key_id

    @classmethod
    def from_text(cls, text: str) -> Sealer:
        """From a configured key: 64 hexadecimal digits, or base64 of 32 bytes; older ones follow, after commas."""
        keys = _keys_in(text)
        return cls(keys[0], keys[1:])

    @classmethod
    def from_key_file(cls, path: str | os.PathLike[str]) -> Sealer:
        """From a key file, created on first need with mode 0600; if many processes try at once, one creates it."""
        file = Path(path)
        stamp = _stamp(file)
        keys = _made_keys(file)
        sealer = cls(keys[0], keys[1:])
        sealer._file, sealer._seen = file, stamp
        return sealer

    def _look_again(self) -> None:
        """Read the keys of the file if it was changed; if it cannot be read, the known keys remain."""
        self._look_at = monotonic() + _LOOK_EVERY_S
        if self._file is None or (stamp := _stamp(self._file)) == self._seen:
            return
        with contextlib.suppress(StoreError):
            self._use(read_keys(self._file))
            self._seen = stamp

    def seal(self, data: bytes, context: bytes = b"") -> str:
        """Encrypt *data*; what is sealed with a *context* (the key of its record) is unsealed only with the same."""
        if monotonic() >= self._look_at:
            self._look_again()
        return self._current.seal(data, context)

    def unseal(self, text: str, context: bytes = b"") -> bytes:
        """Verify and decrypt; data with a single changed bit is refused.

        A value of release 0.1.0 may have been sealed without a context, and is then accepted with any.
        """
        version, _, rest = text.partition(".")
        key_id, _, body = rest.partition(".")
        if version not in ("s1", "s2"):
            raise StoreError(
                "The sealed value has a form that this release does not know.",
                hint="It was written by a newer release, or damaged: use that release, or clear the record.",
                code="seal_version",
            )
        if key_id not in self._keys:
            self._look_again()
        key = self._keys.get(key_id)
        if key is None:
            where = "the configured seal key" if self._file is None else f"the key file {self._file}"
            raise StoreError(
                f"The value was sealed with another key: {key_id[:8]!r} is not in {where} ({', '.join(self.key_ids)}).",
                hint="Put that key back, from its backup, and the value can be read again; or clear the record.",
                code="seal_key",
            )
        data = key.open(version, _strict_base64(body), context)
        if data is None:
            raise StoreError(
                "The sealed value is not what was written: it was modified, truncated, or moved from another record.",
                hint="Nothing was decrypted. Clear the record.",
                code="seal_broken",
            )
        return data


class _Key:
    """One key, ready for use."""

    __slots__ = ("_decrypt", "_encrypt", "_head", "_legacy", "_prefix", "key_id", "replay_key")

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigError(
                f"A seal key must have {KEY_BYTES} bytes; this one has {len(key)}.",
                hint='Create one with: python -c "import secrets; print(secrets.token_hex(32))"',
                path="seal_key",
            )
        # Imported here: only a process that seals or unseals something pays for it.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=b"antiphon seal 2 encrypt").derive(key)
        cipher = AESGCM(derived)
        self._encrypt, self._decrypt = cipher.encrypt, cipher.decrypt
        self._legacy = _LegacyCipher(key)
        self.key_id = key_id_of(key)
        self._prefix = f"s2.{self.key_id}."
        self._head = self._prefix.encode()
        self.replay_key = hmac.digest(key, b"antiphon replay key", "sha256")
        """Opens the originals of recordings, and nothing else that this key seals."""

    def seal(self, data: bytes, context: bytes) -> str:
        nonce, encrypt = _random(_NONCE_BYTES), self._encrypt
        sealed = nonce + encrypt(nonce, data, self._head + context)
        return self._prefix + b2a_base64(sealed, newline=False).decode("ascii")

    def open(self, version: str, raw: bytes, context: bytes) -> bytes | None:
        """The data; ``None`` if it is not what was written."""
        from cryptography.exceptions import InvalidTag

        if version == "s1":
            return self._legacy.open(raw, context)
        if len(raw) < _NONCE_BYTES + _TAG_BYTES:
            return None
        try:
            return self._decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], self._head + context)
        except InvalidTag:
            return None


def key_id_in(sealed: str) -> str:
    """The id of the key that sealed a value."""
    return sealed.split(".", 2)[1][:8] if sealed.startswith(("s1.", "s2.")) else ""


def key_id_of(key: bytes) -> str:
    """Identifies a key without revealing it; the same in both forms."""
    return hmac.digest(key, b"antiphon seal 1 id", "sha256")[:4].hex()


class _LegacyCipher:
    """Reads values of release 0.1.0: SHAKE-256 keystream, HMAC-SHA-256 tag (decision 0006). Never written any more."""

    __slots__ = ("_encrypt", "_sign")

    def __init__(self, key: bytes) -> None:
        self._encrypt = hmac.digest(key, b"antiphon seal 1 encrypt", "sha256")
        self._sign = hmac.digest(key, b"antiphon seal 1 sign", "sha256")

    def open(self, raw: bytes, context: bytes) -> bytes | None:
        """The data, or ``None`` if the tag fits neither with *context* nor without one (as claims were sealed)."""
        nonce, sealed, tag = raw[:24], raw[24:-32], raw[-32:]
        if len(raw) < 24 + 32:
            return None
        for head in (b"s1 %d " % len(context) + context, b"s1 0 "):
            if hmac.compare_digest(tag, hmac.digest(self._sign, head + nonce + sealed, "sha256")):
                stream = hashlib.shake_256(self._encrypt + nonce).digest(len(sealed))
                mixed = int.from_bytes(sealed, "little") ^ int.from_bytes(stream, "little")
                return mixed.to_bytes(len(sealed), "little")
        return None


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


def _strict_base64(text: str) -> bytes:
    """The bytes if this is their canonical encoding (base64 has spare bits at its end), otherwise nothing."""
    try:
        raw = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return b""
    return raw if binascii.b2a_base64(raw, newline=False).decode("ascii") == text else b""


T = TypeVar("T")


def _usable(file: Path, act: Callable[[], T]) -> T:
    try:
        return act()
    except OSError as error:
        raise StoreError(
            f"The seal key {file} cannot be used: {error.strerror or error}.",
            hint="Make its folder readable and writable for this user, or configure a seal key.",
            code="seal_key",
        ) from error


def _made_keys(file: Path) -> list[bytes]:
    """The keys of a key file, which is created if there is none."""
    if not file.exists():
        _usable(file, lambda: write_keys(file, [os.urandom(KEY_BYTES)], new=True))
    return read_keys(file)


def _keys_in(text: str) -> list[bytes]:
    """The keys of a configured text; empty for an invalid one."""
    keys = []
    for part in text.split(","):
        given = part.strip()
        try:
            keys.append(bytes.fromhex(given) if len(given) == 2 * KEY_BYTES else _from_base64(given))
        except (binascii.Error, ValueError):
            keys.append(b"")
    return keys


class FingerprintKeys:
    """Keys for fingerprints, derived from a seal key that was given or is in a file; the first one is for new ones.

    None if there is no usable seal key: a log line must not fail for it. A file that was changed is read again; if it
    cannot be read any more, the known keys remain.
    """

    __slots__ = ("_file", "_keys", "_seen")

    def __init__(self, given: bytes | str | None, file: Path | None) -> None:
        self._file = file if given is None else None
        self._keys = _derived(_keys_in(given) if isinstance(given, str) else [given or b""])
        self._seen: object = FingerprintKeys  # no stamp: it has not been read yet

    def __call__(self) -> tuple[bytes, ...]:
        """The current keys."""
        if self._file is not None and (stamp := _stamp(self._file)) != self._seen:
            with contextlib.suppress(StoreError):
                self._keys = _derived(read_keys(self._file) if self._keys else _made_keys(self._file))
            self._seen = stamp
        return self._keys


def _derived(keys: Sequence[bytes]) -> tuple[bytes, ...]:
    return tuple(hmac.digest(key, b"antiphon fingerprint key", "sha256") for key in keys if len(key) == KEY_BYTES)


def _stamp(file: Path) -> object:
    """Changes with the file, which is only ever replaced, and with its mode."""
    try:
        found = os.stat(file)  # noqa: PTH116 - a third of the price of Path.stat, often before a value is sealed
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size


def read_keys(file: Path) -> list[bytes]:
    """The keys of a key file; the first one seals."""

    def read() -> tuple[int, str]:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as stream:
            return os.fstat(stream.fileno()).st_mode, stream.read(65_536).decode("ascii", "replace")

    mode, text = _usable(file, read)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise StoreError(
            f"The seal key {file} can be read by other users (mode {stat.S_IMODE(mode):o}).",
            hint=f"Run: chmod 600 {file}",
            code="seal_key",
        )
    keys = [_key_in(line) for line in text.splitlines() if line.strip()]
    if not keys or b"" in keys:
        raise StoreError(
            f"The file {file} is not a seal key.",
            hint="Restore it from a backup. Without it, results that were sealed with it cannot be read again.",
            code="seal_key",
        )
    return keys


def _key_in(line: str) -> bytes:
    """The key in a line of a key file; empty if there is none."""
    if not line.startswith(_FILE_HEAD):
        return b""
    try:
        key = _from_base64(line[len(_FILE_HEAD) :].strip())
    except (binascii.Error, ValueError):
        return b""
    return key if len(key) == KEY_BYTES else b""


def key_ids(file: Path) -> list[str]:
    """The ids of the keys in a key file; the first one seals."""
    return [key_id_of(key) for key in read_keys(file)]


def write_keys(file: Path, keys: Sequence[bytes], *, new: bool = False) -> bool:
    """Write the key file whole or not at all; *new*: keep the file if another process made it first (``False``).

    A file that is replaced keeps its owner and its mode, as far as this user may set them.
    """
    file.parent.mkdir(exist_ok=True)  # like the store beside it: no folder above it is created
    text = "".join(f"{_FILE_HEAD}{base64.b64encode(key).decode('ascii')}\n" for key in keys)
    descriptor, name = tempfile.mkstemp(prefix=".seal-", dir=file.parent)  # mkstemp makes it 0600
    written = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if not new:
                take_owner(descriptor, file)
            stream.write(text.encode("ascii"))
            stream.flush()
            os.fsync(stream.fileno())
        if new:
            try:
                os.link(name, file)
            except FileExistsError:
                return False
        else:
            written.replace(file)
        sync(file.parent)
    finally:
        written.unlink(missing_ok=True)
    return True


def change_keys(file: Path, change: Callable[[list[bytes]], list[bytes]]) -> list[bytes]:
    """Replace the keys of a key file by the result of *change*; they are read under the lock of the file.

    The lock is on the file itself, so a process that waited for a file that was replaced in the meantime starts over.
    """
    import fcntl

    file = Path(os.path.realpath(file))

    def act() -> list[bytes]:
        while True:
            try:
                descriptor = os.open(file, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
            except FileNotFoundError:
                keys = change([])
                if write_keys(file, keys, new=True):
                    return keys
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_ino == file.stat().st_ino:
                    keys = change(read_keys(file))
                    write_keys(file, keys)
                    return keys
            except FileNotFoundError:
                continue  # moved away: a restore
            finally:
                os.close(descriptor)

    return _usable(file, act)


def take_owner(target: int | Path, model: Path) -> None:
    """Give *target* the owner of *model*, as far as this user may; for a replaced file also the mode."""
    found = model.stat()
    if stat.S_ISREG(found.st_mode):
        os.chmod(target, stat.S_IMODE(found.st_mode))  # noqa: PTH101 - it may be a descriptor
    with contextlib.suppress(PermissionError):
        os.chown(target, found.st_uid, found.st_gid)


def sync(place: Path) -> None:
    """Make what was written to a file, or the names in a folder, survive a power failure."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
