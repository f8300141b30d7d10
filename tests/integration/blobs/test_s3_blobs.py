"""K7, D31: payloads in an S3-compatible bucket, against a real server."""

from __future__ import annotations

import asyncio
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from antiphon.blobs.local import PART_BYTES, ContentBlobs
from antiphon.blobs.s3 import Bucket, Multipart, S3Objects, bucket_from
from antiphon.errors import ArtifactError, ConfigError, NotFound, StoreUnavailable
from tests.conftest import S3Access


def objects_of(access: S3Access, prefix: str = "", **options: Any) -> S3Objects:
    bucket = Bucket(access.bucket, access.endpoint, access.region, access.key, access.secret, prefix=prefix)
    return S3Objects(bucket, **options)


def blobs_of(access: S3Access, prefix: str = "", **options: Any) -> ContentBlobs:
    return ContentBlobs(objects_of(access, prefix, **options))


def refs(blobs: ContentBlobs, tenant: str) -> list[str]:
    return list(blobs.refs(tenant))


def some_bytes(length: int) -> bytes:
    return random.Random(length).randbytes(length)


@pytest.mark.parametrize("prefix", ["", "team/antiphon"])
def test_put_get_list_delete(s3_access: S3Access, prefix: str) -> None:
    blobs = blobs_of(s3_access, prefix=prefix)
    found = [blobs.put("a/b ä", data) for data in (b"", b"x", some_bytes(100_000))]
    assert blobs.put("a/b ä", b"x") == found[1]
    assert blobs.get("a/b ä", found[2]) == some_bytes(100_000)
    assert sorted(refs(blobs, "a/b ä")) == sorted(found)
    assert refs(blobs, "other") == []
    with pytest.raises(NotFound):
        blobs.get("other", found[0])
    blobs.delete("a/b ä", found[0])
    blobs.delete("a/b ä", found[0])
    with pytest.raises(NotFound):
        blobs.get("a/b ä", found[0])


async def test_an_event_loop_uses_it_in_threads(s3_access: S3Access) -> None:
    blobs = blobs_of(s3_access)
    ref = await asyncio.to_thread(blobs.put, "default", b"x")
    assert await asyncio.to_thread(blobs.get, "default", ref) == b"x"
    assert await asyncio.to_thread(refs, blobs, "default") == [ref]


def test_many_writers_of_one_payload(s3_access: S3Access) -> None:
    blobs = blobs_of(s3_access)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda n: blobs.put("default", b"%d" % (n % 4)), range(32)))
    assert sorted(refs(blobs, "default")) == sorted(found)


@pytest.mark.parametrize(
    ("good", "evil"),
    [
        (b"good content", b"evil"),
        (b"good content", b"evil content"),
        (some_bytes(PART_BYTES + 9), some_bytes(PART_BYTES + 9)[:-1] + b"x"),
    ],
    ids=["shorter", "of the same size", "in parts"],
)
def test_a_damaged_object_is_refused_and_healed(s3_access: S3Access, good: bytes, evil: bytes) -> None:
    blobs = blobs_of(s3_access)
    ref = blobs.put("default", good)
    digest = ref.removeprefix("sha256:")
    objects_of(s3_access).put(f"t=default/{digest[:2]}/{digest}", evil)
    with pytest.raises(ArtifactError, match="damaged"):
        blobs.get("default", ref)
    blobs.put("default", good)
    assert blobs.get("default", ref) == good


@pytest.mark.parametrize("data", [b"", b"x", some_bytes(PART_BYTES + 9)], ids=["empty", "small", "in parts"])
def test_an_object_that_is_there_is_not_sent_again(
    s3_access: S3Access, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    objects = objects_of(s3_access)
    objects.put_once("a", data)
    monkeypatch.setattr(S3Objects, "put", lambda *_: pytest.fail("it is there"))
    objects.put_once("a", data)
    assert objects.get("a") == data


def test_large_payloads_go_up_in_parts(s3_access: S3Access, tmp_path: Path) -> None:
    data = some_bytes(2 * PART_BYTES + 12_345)
    blobs = blobs_of(s3_access)
    ref = blobs.put("default", data)
    assert blobs.put("default", data) == ref
    assert blobs.get("default", ref) == data
    path = tmp_path / "large"
    path.write_bytes(data)
    objects_of(s3_access, "x").put_file("of/a file ä+.bin", path)
    assert objects_of(s3_access, "x").get("of/a file ä+.bin") == data


def test_a_broken_off_upload_goes_on_where_it_stopped(
    s3_access: S3Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large"
    path.write_bytes(some_bytes(3 * PART_BYTES + 1))
    objects = objects_of(s3_access)
    sent: list[str] = []
    send = Multipart._send

    def counted(self: Multipart, method: str, name: str, query: dict[str, str], body: bytes):  # type: ignore[no-untyped-def]
        if method == "PUT":
            sent.append(query["partNumber"])
            if len(sent) == 3:
                raise KeyboardInterrupt
        return send(self, method, name, query, body)

    monkeypatch.setattr(Multipart, "_send", counted)
    with pytest.raises(KeyboardInterrupt):
        objects.put_file("large", path)
    with pytest.raises(NotFound):
        objects.get("large")
    objects.put_file("large", path)
    assert sent == ["1", "2", "3", "3", "4"]
    assert objects.get("large") == path.read_bytes()


def test_an_upload_of_other_content_is_not_continued_with_its_parts(
    s3_access: S3Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"a" * (2 * PART_BYTES))
    objects = objects_of(s3_access)
    with monkeypatch.context() as patch:
        patch.setattr(Multipart, "_finish", lambda *_: None)
        objects.put_file("large", path)
    path.write_bytes(b"a" * PART_BYTES + b"b" * PART_BYTES)
    objects.put_file("large", path)
    assert objects.get("large") == path.read_bytes()


@pytest.mark.parametrize("other", ["finishes", "gives up"])
def test_an_upload_that_another_process_ends_is_sent_once(
    s3_access: S3Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Two processes that send one object share the upload; the one that is late finds the object there, or retries."""
    path = tmp_path / "large"
    path.write_bytes(some_bytes(2 * PART_BYTES + 1))
    objects = objects_of(s3_access)
    send = Multipart._send
    started: list[str] = []

    def ended(self: Multipart, method: str, name: str, query: dict[str, str], body: bytes):  # type: ignore[no-untyped-def]
        started.extend(["start"] if query == {"uploads": ""} else [])
        if query.get("partNumber") == "2" and started == ["start"]:
            started.append("ended")
            if other == "finishes":
                objects_of(s3_access).put_file(name, path)
            else:
                send(self, "DELETE", name, {"uploadId": query["uploadId"]}, b"")
        return send(self, method, name, query, body)

    monkeypatch.setattr(Multipart, "_send", ended)
    objects.put_file("large", path)
    assert objects.get("large") == path.read_bytes()
    assert started == (["start", "ended"] if other == "finishes" else ["start", "ended", "start"])


def test_a_large_file_for_a_bucket_that_is_not_there(s3_access: S3Access, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(PART_BYTES + 1))
    with pytest.raises(StoreUnavailable, match="NoSuchBucket"):
        objects_of(s3_access._replace(bucket="no-such-bucket-here")).put_file("large", path)


def test_a_bucket_that_is_not_there_is_no_missing_blob(s3_access: S3Access) -> None:
    ref = blobs_of(s3_access).put("default", b"x")
    gone = s3_access._replace(bucket="no-such-bucket-here")
    with pytest.raises(StoreUnavailable, match="does not exist") as missing:
        blobs_of(gone).get("default", ref)
    assert "bucket" in missing.value.hint
    with pytest.raises(StoreUnavailable, match="does not exist"):
        list(objects_of(gone).names())


def test_wrong_credentials_are_named_and_not_shown(s3_access: S3Access, tmp_path: Path) -> None:
    wrong = s3_access._replace(secret="wrong-secret-value")
    with pytest.raises(StoreUnavailable, match="credentials") as refused:
        blobs_of(wrong).put("default", b"x")
    assert "wrong-secret-value" not in repr(refused.value) + str(refused.value.__cause__)
    with pytest.raises(StoreUnavailable) as listed:
        list(objects_of(wrong).names())
    assert listed.value.message == refused.value.message
    path = tmp_path / "large"
    path.write_bytes(some_bytes(PART_BYTES + 1))
    with pytest.raises(StoreUnavailable, match="403"):
        objects_of(wrong).put_file("large", path)


def test_a_bucket_that_is_not_there(s3_access: S3Access) -> None:
    blobs = blobs_of(s3_access._replace(bucket="no-such-bucket-here"))
    with pytest.raises((StoreUnavailable, NotFound), match="no-such-bucket-here"):
        blobs.get("default", "sha256:" + "0" * 64)


def test_credentials_from_the_environment(s3_access: S3Access, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "R2_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_access.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_access.secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_access.endpoint)
    monkeypatch.setenv("AWS_REGION", s3_access.region)
    ref = ContentBlobs(S3Objects(bucket_from(os.environ, bucket=s3_access.bucket))).put("default", b"x")
    monkeypatch.setenv("R2_ACCESS_KEY_ID", s3_access.key)
    monkeypatch.setenv("R2_SECRET_ACCESS_KEY", s3_access.secret)
    monkeypatch.setenv("R2_ENDPOINT_URL", s3_access.endpoint)
    monkeypatch.setenv("R2_BUCKET_NAME", s3_access.bucket)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-somebody-else")
    assert ContentBlobs(S3Objects(bucket_from(os.environ))).get("default", ref) == b"x"


def test_settings_and_environment() -> None:
    r2 = {"R2_ACCOUNT_ID": "acc", "R2_ACCESS_KEY_ID": "k", "R2_SECRET_ACCESS_KEY": "s", "R2_BUCKET_NAME": "b"}
    assert bucket_from(r2) == Bucket("b", "https://acc.r2.cloudflarestorage.com", "auto", "k", "s")
    aws = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
    assert bucket_from(aws, bucket="b", prefix="/p/") == Bucket("b", "", "us-east-1", "k", "s", "t", "p")
    given = bucket_from(aws | r2, bucket="x", endpoint="http://h/", region="r")
    assert given == Bucket("x", "http://h", "r", "k", "s")
    assert (
        bucket_from(aws | {"AWS_ENDPOINT_URL_S3": "http://s3", "AWS_ENDPOINT_URL": "x"}, bucket="b").endpoint
        == "http://s3"
    )
    assert "secret" not in repr(given._replace(secret_key="secret"))
    with pytest.raises(ConfigError, match="bucket"):
        bucket_from({})
    with pytest.raises(ConfigError, match="secret"):
        bucket_from({"AWS_ACCESS_KEY_ID": "a"}, bucket="b")
