"""A bucket with an outbox: while the bucket is unreachable everything is stored locally, and sent when it is back.

Whatever is in the outbox folder has not arrived yet; no other state is needed. So a killed process loses nothing, and
any later process, or :meth:`Outbox.flush`, sends the rest. An interrupted upload of a large object resumes. A process
that ends gives its senders a few seconds, then reports what is left.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from antiphon._daemon import Latch, Signal
from antiphon.blobs.local import PART_BYTES, ContentBlobs, LocalObjects, Objects, is_note
from antiphon.errors import AntiphonError, NotFound, StoreUnavailable

_log = logging.getLogger("antiphon.blobs")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_DRAIN_S = 5.0


class Status(NamedTuple):
    """What has not arrived yet, and why."""

    pending: int
    bytes: int
    trouble: str
    """The bucket's last error; empty while it answers."""


class Outbox:
    """Objects of a remote place, with a local folder for what has not arrived there.

    Files are sent at once, and again in the background if that fails. *payloads* are named by their content, so
    existing ones are not sent again; their writers do not wait for the network.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        remote: Objects,
        *,
        payloads: bool = False,
        first_pause: float = _FIRST_PAUSE_S,
    ) -> None:
        self.local: LocalObjects = LocalObjects(folder)
        self._payloads = payloads
        self.remote = remote
        self._first_pause = first_pause
        self._pause = first_pause
        self._retry_at = 0.0
        self._last_error = ""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wakes = Signal()
        self._stop = Latch()
        self._looked = False

    @property
    def url(self) -> str:
        return self.remote.url

    def put_once(self, name: str, data: bytes) -> None:
        self.local.put(name, data)
        self._retry_later()

    def put_file(self, name: str, path: Path) -> None:
        self.local.put_file(name, path)
        if not self._send(name):
            self._retry_later()

    def get(self, name: str) -> bytes:
        try:
            return self.local.get(name)
        except NotFound:
            return self.remote.get(name)

    def written_ms(self, name: str) -> int:
        try:
            return self.local.written_ms(name)
        except NotFound:
            return self.remote.written_ms(name)

    def move(self, name: str, to: str) -> None:
        try:
            self.local.move(name, to)
        except NotFound:
            self.remote.move(name, to)
        else:
            with contextlib.suppress(NotFound):  # it has not arrived there
                self.remote.move(name, to)

    def delete(self, name: str) -> None:
        self.local.delete(name)
        self.remote.delete(name)

    def names(self, prefix: str = "") -> Iterator[str]:
        waiting = set(self.local.names(prefix))
        yield from sorted(waiting)
        for name in self.remote.names(prefix):
            if name not in waiting:
                yield name

    def status(self) -> Status:
        """What is waiting here."""
        sizes = []
        for name in self.local.names():
            if not (self._payloads and is_note(name)):
                with contextlib.suppress(OSError):  # it has arrived meanwhile
                    sizes.append(self.local.path(name).stat().st_size)
        return Status(len(sizes), sum(sizes), self._last_error)

    def flush(self) -> Status:
        """Send what is waiting now; stops at the first failure and reports what is left."""
        self._retry_at = 0.0
        for name in list(self.local.names()):
            if not self._send(name):
                self._retry_later()
                break
        return self.status()

    def close(self) -> None:
        """Stop retrying in the background; what is waiting stays in the folder."""
        self._stop.set()
        self._wakes.set()
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join()

    def take_up(self) -> None:
        """Start sending what an earlier process left; checks once."""
        if not self._looked:
            self._looked = True
            if any(True for _ in self.local.names()):
                self._retry_later()

    def drain(self, until: float) -> None:
        """Let the sender finish, unless the bucket fails; an unreachable one is tried once more."""
        thread = self._thread
        if thread is None:
            return
        self._retry_at = 0.0
        self._wakes.set()
        while thread.is_alive() and not self._retry_at and time.monotonic() < until:
            thread.join(0.02)

    def _send(self, name: str) -> bool:
        """Whether the object has arrived (or is no longer wanted)."""
        if time.monotonic() < self._retry_at:
            return False
        path = self.local.path(name)
        try:
            before = path.stat()
            if self._payloads and before.st_size <= PART_BYTES:
                self.remote.put_once(name, path.read_bytes())
            else:
                self.remote.put_file(name, path)
            now = path.stat()
        except FileNotFoundError:
            return True
        except (StoreUnavailable, NotFound) as error:
            if not path.exists():  # another process has sent it
                return True
            self._mark_down(error)
            return False
        self._mark_up()
        if (before.st_ino, before.st_mtime_ns) == (now.st_ino, now.st_mtime_ns):
            self.local.delete(name)  # else it was replaced meanwhile: the new one must still be sent
        return True

    def _mark_down(self, error: Exception) -> None:
        said = error.message if isinstance(error, AntiphonError) else f"{type(error).__name__}: {error}"
        with self._lock:
            if not self._last_error:
                _log.warning("%s Payloads are kept in %s until it is back.", said, self.local.folder)
            self._last_error = said
            self._retry_at = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, _LONGEST_PAUSE_S)

    def _mark_up(self) -> None:
        if self._last_error:
            with self._lock:
                self._last_error = ""
                self._pause = self._first_pause
            _log.info("The bucket %s answers again.", self.remote.url)

    def _retry_later(self) -> None:
        with self._lock:
            if self._stop.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            if self._payloads:  # otherwise the writer waits, and gets the result
                _senders.add(self)
            self._thread = threading.Thread(target=self._retry, name="antiphon-outbox", daemon=True)
            self._thread.start()

    def _retry(self) -> None:
        while True:
            self._wakes.wait(max(0.0, self._retry_at - time.monotonic()))
            if self._stop.is_set():
                return
            try:
                waiting = list(self.local.names())
                if not waiting and self._is_empty():
                    return
                for name in waiting:
                    if self._stop.is_set() or not self._send(name):
                        break
            except Exception as error:  # on any error: what is waiting must be retried
                self._mark_down(error)

    def _is_empty(self) -> bool:
        """Whether the sender may stop; whoever stores something after this starts a new one."""
        with self._lock:
            if any(True for _ in self.local.names()):
                return False
            self._thread = None
            return True


class OutboxBlobs(ContentBlobs):
    """Blobs in a bucket that may be unreachable; they are sent in the background."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        remote: Objects,
        *,
        first_pause: float = _FIRST_PAUSE_S,
        store: str = "",
    ) -> None:
        self.outbox: Outbox = Outbox(folder, remote, payloads=True, first_pause=first_pause)
        super().__init__(self.outbox, store)


_senders: weakref.WeakSet[Outbox] = weakref.WeakSet()
"""Those with background work that no writer waits for."""


def _at_exit() -> None:
    """Send what is left, if the buckets accept it now; then report what is waiting."""
    until = time.monotonic() + _DRAIN_S
    outboxes = list(_senders)
    for outbox in outboxes:
        outbox.drain(until)
    for outbox in {outbox.local.folder: outbox for outbox in outboxes}.values():
        with contextlib.suppress(OSError):
            pending, size, trouble = outbox.status()
            if pending:
                _log.warning(
                    "The process ends before all payloads have arrived in %s: %d of them (%d bytes) are kept in %s. "
                    "%sThe next process that records sends them, or: antiphon export --waiting",
                    outbox.url,
                    pending,
                    size,
                    outbox.local.folder,
                    f"{trouble} " if trouble else "",
                )


os.register_at_fork(after_in_child=_senders.clear)
atexit.register(_at_exit)
