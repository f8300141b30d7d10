"""K7: nothing is lost while the bucket is away; it is kept, retried and reported."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from antiphon.blobs.local import PART_BYTES, ContentBlobs, LocalObjects
from antiphon.blobs.outbox import Outbox, OutboxBlobs
from antiphon.errors import NotFound, StoreUnavailable
from tests.conftest import S3Access
from tests.faultproxy import FaultProxy
from tests.integration.blobs.test_s3_blobs import objects_of, refs


class Away(LocalObjects):
    """A remote place that can be cut off."""

    away = False

    def put(self, name: str, data: bytes) -> None:
        self._check()
        super().put(name, data)

    def put_file(self, name: str, path: Path) -> None:
        self._check()
        super().put_file(name, path)

    def get(self, name: str) -> bytes:
        self._check()
        return super().get(name)

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailable("The bucket is away.")


@pytest.fixture
def remote(tmp_path: Path) -> Away:
    return Away(tmp_path / "remote")


@pytest.fixture
def outbox(tmp_path: Path, remote: Away) -> Iterator[Outbox]:
    """For payloads."""
    made = Outbox(tmp_path / "outbox", remote, payloads=True, first_pause=0.02)
    yield made
    made.close()


@pytest.fixture
def files(tmp_path: Path, remote: Away) -> Iterator[Outbox]:
    """For artifacts."""
    made = Outbox(tmp_path / "files", remote, first_pause=0.02)
    yield made
    made.close()


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "artifact"
    path.write_bytes(b"x")
    return path


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def arrived(outbox: Outbox) -> None:
    until(lambda: outbox.status().pending == 0)


def refused(outbox: Outbox) -> None:
    """Wait until the sender knows that the bucket is away."""
    until(lambda: outbox.status().trouble != "")


def test_while_the_bucket_answers_nothing_is_kept_here(outbox: Outbox, remote: Away) -> None:
    outbox.put_once("a/b", b"x")
    arrived(outbox)
    assert remote.get("a/b") == outbox.get("a/b") == b"x"
    assert outbox.status() == (0, 0, "")


def test_while_it_is_away_everything_is_kept_and_sent_later(
    outbox: Outbox, remote: Away, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.put_once("before", b"0")
    arrived(outbox)
    remote.away = True
    with caplog.at_level(logging.INFO, "antiphon.blobs"):
        for n in range(5):
            outbox.put_once(f"k{n}", b"%d" % n)
        assert outbox.get("k3") == b"3", "what is kept here can be read"
        assert outbox.status()[:2] == (5, 5)
        refused(outbox)
        assert "away" in outbox.status().trouble
        with pytest.raises(StoreUnavailable):
            outbox.get("before")
        remote.away = False
        arrived(outbox)
    assert [remote.get(f"k{n}") for n in range(5)] == [b"%d" % n for n in range(5)]
    said = [record.levelname for record in caplog.records if record.name == "antiphon.blobs"]
    assert said == ["WARNING", "INFO"], "reported once, and once when over"
    assert outbox.status() == (0, 0, "")


def test_it_does_not_wait_for_a_bucket_known_to_be_away(tmp_path: Path, remote: Away) -> None:
    outbox = Outbox(tmp_path / "outbox", remote, payloads=True, first_pause=60)
    remote.away = True
    tries: list[str] = []
    check = remote._check
    remote._check = lambda: (tries.append("x"), check())[1]  # type: ignore[method-assign, func-returns-value]
    for n in range(10):
        outbox.put_once(f"k{n}", b"x")
        refused(outbox)
    assert len(tries) == 1
    remote.away = False
    assert outbox.flush() == (0, 0, ""), "an explicit flush does not wait"
    outbox.close()


def test_another_process_takes_up_what_was_left(outbox: Outbox, remote: Away, tmp_path: Path) -> None:
    remote.away = True
    outbox.put_once("left", b"behind")
    refused(outbox)
    outbox.close()
    remote.away = False
    later = Outbox(tmp_path / "outbox", remote, payloads=True, first_pause=0.02)
    later.take_up()
    arrived(later)
    assert remote.get("left") == b"behind"
    later.close()


def test_what_is_deleted_while_waiting_is_not_sent(outbox: Outbox, remote: Away) -> None:
    remote.away = True
    outbox.put_once("a", b"x")
    refused(outbox)
    outbox.local.delete("a")
    remote.away = False
    assert outbox.flush().pending == 0
    with pytest.raises(NotFound):
        remote.get("a")


def test_what_is_replaced_while_being_sent_is_sent_again(files: Outbox, remote: Away, artifact: Path) -> None:
    remote.away = True
    files.put_file("a", artifact)
    send = remote.put_file

    def slowly(name: str, path: Path) -> None:
        send(name, path)
        remote.put_file = send  # type: ignore[method-assign]
        files.local.put(name, b"new")

    remote.put_file = slowly  # type: ignore[method-assign]
    remote.away = False
    files.flush()
    until(lambda: files.flush().pending == 0)
    assert remote.get("a") == b"new"


def test_the_sender_outlives_every_error(files: Outbox, remote: Away, artifact: Path) -> None:
    errors = [RuntimeError("a fault of the library"), NotFound("No such upload.")]
    send = remote.put_file

    def failing(name: str, path: Path) -> None:
        if errors:
            raise errors.pop(0)
        send(name, path)

    remote.away = True
    files.put_file("a", artifact)
    remote.put_file = failing  # type: ignore[method-assign]
    remote.away = False
    arrived(files)
    assert not errors
    assert remote.get("a") == b"x"


def test_what_another_process_has_sent_meanwhile_is_no_trouble(files: Outbox, remote: Away) -> None:
    def sent_by_another(name: str, path: Path) -> None:
        path.unlink()
        raise NotFound("No such upload.")

    remote.put_file = sent_by_another  # type: ignore[method-assign]
    files.local.put("a", b"x")
    assert files.flush() == (0, 0, "")


def test_many_threads_and_a_flickering_bucket(outbox: Outbox, remote: Away) -> None:
    stop = threading.Event()

    def flicker() -> None:
        while not stop.wait(0.01):
            remote.away = not remote.away

    flickering = threading.Thread(target=flicker)
    flickering.start()

    def put(first: int) -> None:
        for n in range(first, first + 25):
            outbox.put_once(f"k{n}", b"%d" % n)

    threads = [threading.Thread(target=put, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    flickering.join()
    remote.away = False
    until(lambda: outbox.flush().pending == 0)
    for first in (0, 100, 200):
        assert all(remote.get(f"k{n}") == b"%d" % n for n in range(first, first + 25))


@pytest.fixture
def cut(s3_access: S3Access, fault_proxy: Callable[[int], FaultProxy]) -> tuple[FaultProxy, S3Access]:
    port = urlsplit(s3_access.endpoint).port
    assert port is not None
    proxy = fault_proxy(port)
    return proxy, s3_access._replace(endpoint=f"http://127.0.0.1:{proxy.port}")


def test_a_real_bucket_behind_a_network_that_fails(cut: tuple[FaultProxy, S3Access], tmp_path: Path) -> None:
    proxy, access = cut
    objects = objects_of(access, timeout=2.0, retries=0)
    remote, blobs = ContentBlobs(objects), OutboxBlobs(tmp_path / "outbox", objects, first_pause=0.1)
    large = b"x" * (PART_BYTES + 5)
    found = [blobs.put("default", b"before")]
    until(lambda: blobs.outbox.status().pending == 0)  # there, or sent again
    proxy.refuse()
    proxy.reset()
    found += [blobs.put("default", data) for data in (b"during", large)]
    assert blobs.outbox.status().pending == 2
    assert blobs.get("default", found[2]) == large
    with pytest.raises(StoreUnavailable):
        blobs.get("default", found[0])
    proxy.heal()
    until(lambda: blobs.outbox.status().pending == 0)
    assert sorted(refs(remote, "default")) == sorted(found)
    assert remote.get("default", found[2]) == large
    blobs.outbox.close()
