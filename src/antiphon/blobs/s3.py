"""Objects in any S3-compatible bucket (AWS, Cloudflare R2, MinIO, SeaweedFS …), through the extra ``s3`` (K7)."""

from __future__ import annotations

import hashlib
import hmac
import io
import math
import os
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from antiphon.blobs.local import PART_BYTES
from antiphon.errors import ConfigError, NotFound, StoreUnavailable, missing_extra

T = TypeVar("T")

_MOST_PARTS = 9_000
_TRIES = 3
_NO_BUCKET = "<Code>NoSuchBucket</Code>"
_DENIED = re.compile(r"status code: 40[13]\b")


class Bucket(NamedTuple):
    """Where a bucket is and with which credentials. Without keys the environment's own credentials are used."""

    name: str
    endpoint: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: str = ""
    token: str = ""
    prefix: str = ""

    def __repr__(self) -> str:
        return f"Bucket({self.url!r})"

    @property
    def url(self) -> str:
        """The address without secrets."""
        place = f"{self.name}/{self.prefix}".rstrip("/")
        return f"s3://{place}" + (f" at {self.endpoint}" if self.endpoint else "")


def bucket_from(
    environment: Mapping[str, str],
    *,
    bucket: str | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    prefix: str = "",
) -> Bucket:
    """Complete the given values from ``R2_*`` (if its key is set) or the standard ``AWS_*`` names, never from both."""
    account = environment.get("R2_ACCOUNT_ID", "")
    if environment.get("R2_ACCESS_KEY_ID"):
        found = Bucket(
            name=environment.get("R2_BUCKET_NAME", ""),
            endpoint=environment.get("R2_ENDPOINT_URL")
            or (f"https://{account}.r2.cloudflarestorage.com" if account else ""),
            region="auto",
            access_key=environment["R2_ACCESS_KEY_ID"],
            secret_key=environment.get("R2_SECRET_ACCESS_KEY", ""),
        )
    else:
        found = Bucket(
            name=environment.get("R2_BUCKET_NAME", ""),
            endpoint=environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL", ""),
            region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION", ""),
            access_key=environment.get("AWS_ACCESS_KEY_ID", ""),
            secret_key=environment.get("AWS_SECRET_ACCESS_KEY", ""),
            token=environment.get("AWS_SESSION_TOKEN", ""),
        )
    given = {"name": bucket, "endpoint": endpoint, "region": region}
    found = found._replace(**{name: value for name, value in given.items() if value}, prefix=prefix.strip("/"))
    if not found.name:
        raise ConfigError("No bucket is named.", path="bucket", hint="Set [artifacts] bucket or R2_BUCKET_NAME.")
    if found.access_key and not found.secret_key:
        raise ConfigError("An access key is given without its secret.", path="secret_key")
    return found._replace(endpoint=found.endpoint.rstrip("/"), region=found.region or "us-east-1")


class _Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Multipart:
    """Uploads large files in parts to one bucket with static keys, and resumes interrupted uploads.

    The server keeps the parts it has. To resume, the uploads with that name are listed, the parts of the newest one are
    compared with the file by their MD5 entity tags, and only missing or different ones are sent. Requests are signed by
    hand (AWS Signature Version 4): the client library cannot resume an upload.
    """

    def __init__(self, bucket: Bucket, timeout: float) -> None:
        self._bucket = bucket
        self._timeout = timeout
        endpoint = bucket.endpoint or f"https://s3.{bucket.region}.amazonaws.com"
        self._url = urlsplit(endpoint)

    def upload(self, name: str, path: Path) -> None:
        """Send *path* as the object *name*, continuing where an earlier attempt stopped.

        Raises :class:`~antiphon.errors.NotFound` if another process ends that upload meanwhile.
        """
        size = max(PART_BYTES, math.ceil(path.stat().st_size / _MOST_PARTS / PART_BYTES) * PART_BYTES)
        upload = self._unfinished(name)
        there = self._parts(name, upload) if upload else {}
        upload = upload or self._start(name)
        tags: list[str] = []
        with path.open("rb") as file:
            while part := file.read(size):
                number = len(tags) + 1
                tag = f'"{hashlib.md5(part, usedforsecurity=False).hexdigest()}"'
                if there.get(number) != tag:
                    query = {"partNumber": str(number), "uploadId": upload}
                    tag = self._request("PUT", name, query, part).headers.get("etag", tag)
                tags.append(tag)
        self._finish(name, upload, tags)

    def _unfinished(self, name: str) -> str | None:
        answer = _tree(self._request("GET", "", {"uploads": "", "prefix": name}).body)
        found = [
            (_text(item, "Initiated"), _text(item, "UploadId"))
            for item in answer
            if item.tag == "Upload" and _text(item, "Key") == name
        ]
        return max(found)[1] if found else None

    def _parts(self, name: str, upload: str) -> dict[int, str]:
        parts: dict[int, str] = {}
        marker = "0"
        while True:
            query = {"uploadId": upload, "part-number-marker": marker}
            try:
                answer = _tree(self._request("GET", name, query).body)
            except NotFound:
                return parts
            for item in answer:
                if item.tag == "Part":
                    parts[int(_text(item, "PartNumber"))] = f'"{_text(item, "ETag").strip(chr(34))}"'
            if _text(answer, "IsTruncated") != "true":
                return parts
            marker = _text(answer, "NextPartNumberMarker")

    def _start(self, name: str) -> str:
        return _text(_tree(self._request("POST", name, {"uploads": ""}).body), "UploadId")

    def _finish(self, name: str, upload: str, tags: list[str]) -> None:
        parts = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{tag}</ETag></Part>" for n, tag in enumerate(tags, 1))
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        answer = self._request("POST", name, {"uploadId": upload}, body)
        if b"<Error>" in answer.body:  # S3 may answer 200 and report the error only in the body
            raise self._trouble(answer)

    def _request(self, method: str, name: str, query: Mapping[str, str], body: bytes = b"") -> _Response:
        for attempt in range(1, _TRIES + 1):
            try:
                answer = self._send(method, name, query, body)
            except (OSError, HTTPException) as error:
                if attempt == _TRIES:
                    raise StoreUnavailable(
                        f"The bucket {self._bucket.url} cannot be reached: {error}.",
                        hint="The parts that arrived are kept there; the upload resumes on retry.",
                    ) from error
            else:
                if answer.status == 404 and b"<Code>NoSuchUpload</Code>" in answer.body:
                    raise NotFound(f"No such upload in {self._bucket.url}.")
                if answer.status < 300:
                    return answer
                if answer.status < 500 or attempt == _TRIES:
                    raise self._trouble(answer)
            time.sleep(0.1 * 2**attempt)
        raise AssertionError("every path above returns or raises")

    def _send(self, method: str, name: str, query: Mapping[str, str], body: bytes) -> _Response:
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        path = quote(f"{self._url.path}/{self._bucket.name}/{name}".rstrip("/"), safe="/-_.~")
        words = "&".join(f"{quote(key, safe='-_.~')}={quote(query[key], safe='-_.~')}" for key in sorted(query))
        connection = kind(self._url.netloc, timeout=self._timeout)
        try:
            connection.request(method, f"{path}?{words}", body, self._signed(method, path, words, body))
            answer = connection.getresponse()
            return _Response(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def _signed(self, method: str, path: str, words: str, body: bytes) -> dict[str, str]:
        bucket = self._bucket
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": self._url.netloc, "x-amz-content-sha256": digest, "x-amz-date": moment}
        if bucket.token:
            headers["x-amz-security-token"] = bucket.token
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        request = f"{method}\n{path}\n{words}\n{lines}\n{names}\n{digest}"
        scope = f"{moment[:8]}/{bucket.region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{bucket.secret_key}".encode()
        for word in scope.split("/"):
            key = hmac.digest(key, word.encode(), "sha256")
        signature = hmac.new(key, text.encode(), "sha256").hexdigest()
        credential = f"Credential={bucket.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        return headers | {"authorization": f"AWS4-HMAC-SHA256 {credential}"}

    def _trouble(self, answer: _Response) -> StoreUnavailable:
        try:
            tree = _tree(answer.body)
            said = f"{_text(tree, 'Code')}: {_text(tree, 'Message')}"
        except StoreUnavailable:
            said = "no reason given"
        return StoreUnavailable(
            f"The bucket {self._bucket.url} refused a part of an upload (HTTP {answer.status}, {said}).",
            hint="Check credentials, region and clock; the parts that arrived are kept there.",
        )


class S3Objects:
    """A bucket, or a prefix in one."""

    def __init__(self, bucket: Bucket, *, timeout: float = 30.0, retries: int = 3) -> None:
        self.bucket = bucket
        self._timeout = timeout
        self._retries = retries
        self._kept: Any = None
        self._pid = 0

    @property
    def url(self) -> str:
        return self.bucket.url

    def put(self, name: str, data: bytes) -> None:
        self._call(lambda obstore, store: obstore.put(store, name, data, chunk_size=PART_BYTES))

    def put_once(self, name: str, data: bytes) -> None:
        # not every server supports conditions on multipart uploads
        new = len(data) <= PART_BYTES and self._call(lambda obstore, store: _create(obstore, store, name, data))
        if not new and not self._holds(name, io.BytesIO(data)):
            self.put(name, data)

    def put_file(self, name: str, path: Path) -> None:
        """Upload a file; one larger than a part is sent in parts, and an interrupted upload is resumed."""
        if path.stat().st_size <= PART_BYTES:
            self.put(name, path.read_bytes())
        elif self.bucket.access_key and not _behind_proxy(self.bucket.endpoint):
            self._upload(name, path)
        else:  # a role has no key to sign parts with, and the library handles proxies: in parts, from the start
            self._call(lambda obstore, store: obstore.put(store, name, path, chunk_size=PART_BYTES))

    def get(self, name: str) -> bytes:
        return bytes(self._call(lambda obstore, store: obstore.get(store, name).bytes()))

    def written_ms(self, name: str) -> int:
        return int(self._call(lambda obstore, store: obstore.head(store, name)["last_modified"]).timestamp() * 1000)

    def move(self, name: str, to: str) -> None:
        self._call(lambda obstore, store: obstore.copy(store, name, to))
        self.delete(name)

    def delete(self, name: str) -> None:
        try:
            self._call(lambda obstore, store: obstore.delete(store, name))
        except NotFound:
            return

    def names(self, prefix: str = "") -> Iterator[str]:
        pages = iter(self._call(lambda obstore, store: obstore.list(store, prefix.rstrip("/") or None)))
        while page := self._call(lambda _, __: next(pages, None)):
            for entry in page:
                yield entry["path"]

    def _upload(self, name: str, path: Path) -> None:
        """In parts; an upload that another process completed counts if the object is what was to be sent."""
        for _ in range(_TRIES):
            try:
                return Multipart(self.bucket, self._timeout).upload(self._full(name), path)
            except NotFound:
                with path.open("rb") as file:
                    if self._holds(name, file):
                        return None
        raise StoreUnavailable(
            f"Other processes upload {name} to {self.url} at the same time.", hint="The upload is tried again later."
        )

    def _holds(self, name: str, content: IO[bytes]) -> bool:
        """Whether the object exists with this content, as far as its size and its entity tag tell."""
        try:
            found = self._call(lambda obstore, store: obstore.head(store, name))
        except NotFound:
            return False
        parts = [hashlib.md5(part, usedforsecurity=False) for part in iter(lambda: content.read(PART_BYTES), b"")]
        tag, count = str(found["e_tag"]).strip('"'), f"-{len(parts)}"
        if found["size"] != content.tell():
            return False
        if tag.endswith(count):
            whole = hashlib.md5(b"".join(part.digest() for part in parts), usedforsecurity=False)
            return tag == f"{whole.hexdigest()}{count}"
        return len(parts) != 1 or "-" in tag or tag == parts[0].hexdigest()

    def _full(self, name: str) -> str:
        return f"{self.bucket.prefix}/{name}" if self.bucket.prefix else name

    def _call(self, step: Callable[[Any, Any], T]) -> T:
        try:
            import obstore
            from obstore import exceptions
        except ImportError:
            raise missing_extra("obstore", "s3", "An S3-compatible bucket", ">=0.8") from None
        try:
            return step(obstore, self._store())
        except FileNotFoundError as error:
            if _NO_BUCKET in str(error):
                raise self._no_bucket() from error
            raise NotFound(f"No such object in {self.url}.") from None
        except exceptions.BaseError as error:
            if _NO_BUCKET in str(error):  # listing has no specific error for it
                raise self._no_bucket() from error
            denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
            if isinstance(error, denied) or _DENIED.search(_first_line(error)):  # listing has no specific error for it
                raise StoreUnavailable(
                    f"The bucket {self.url} refuses these credentials.",
                    hint="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or R2_…), and what they may do.",
                ) from error
            raise StoreUnavailable(
                f"The bucket {self.url} cannot be reached or refused the request: {_first_line(error)}",
                hint="Check the endpoint, the region and the network; stored objects are unaffected.",
            ) from error

    def _no_bucket(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"The bucket of {self.url} does not exist (NoSuchBucket).",
            hint="Check [artifacts] bucket, endpoint_url and region, or create the bucket.",
        )

    def _store(self) -> Any:
        if self._kept is None or self._pid != os.getpid():  # a client's threads do not survive a fork
            from obstore.store import S3Store

            bucket, limit = self.bucket, timedelta(seconds=self._timeout)
            login = {
                "endpoint": bucket.endpoint,
                "access_key_id": bucket.access_key,
                "secret_access_key": bucket.secret_key,
                "token": bucket.token,
            }
            config: Any = {"region": bucket.region, "virtual_hosted_style_request": False}
            config |= {name: value for name, value in login.items() if value}
            backoff: Any = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2}
            self._kept = S3Store(
                bucket.name,
                prefix=bucket.prefix or None,
                config=config,
                client_options={
                    "timeout": limit,
                    "connect_timeout": min(timedelta(seconds=5), limit),
                    "allow_http": bucket.endpoint.startswith("http://"),
                },
                retry_config={"max_retries": self._retries, "retry_timeout": limit, "backoff": backoff},
            )
            self._pid = os.getpid()
        return self._kept


def _create(obstore: Any, store: Any, name: str, data: bytes) -> bool:
    """Whether the object is new (``If-None-Match: *``)."""
    try:
        obstore.put(store, name, data, mode="create", use_multipart=False)
    except obstore.exceptions.AlreadyExistsError:
        return False
    return True


def _behind_proxy(endpoint: str) -> bool:
    place = urlsplit(endpoint or "https://s3.amazonaws.com")
    return place.scheme in getproxies() and not proxy_bypass(place.netloc)


def _first_line(error: Exception) -> str:
    """The error, without the server's document and the request that the library adds."""
    return str(error).strip().split("\n", 1)[0].partition(": <?xml")[0][:300]


def _tree(body: bytes) -> ET.Element:
    """The response without namespaces. Documents with a DTD are refused: entities could grow without bound."""
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise StoreUnavailable("The bucket answered with an untrusted document.")
    try:
        tree = ET.fromstring(body)  # noqa: S314 - no DTD, see above
    except ET.ParseError as error:
        raise StoreUnavailable("The bucket answered with something that is not XML.") from error
    for item in tree.iter():
        item.tag = item.tag.rpartition("}")[2]
    return tree


def _text(item: ET.Element, name: str) -> str:
    return item.findtext(name) or ""
