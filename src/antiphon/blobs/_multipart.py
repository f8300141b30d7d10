"""Uploading a large file in parts, and going on with an upload that broke off.

The server keeps the parts it has. To go on, the uploads of that name are listed, the parts of the newest one are
compared with the file by their MD5 entity tags, and only those that are missing or differ are sent.
Requests are signed by hand (AWS Signature Version 4): the client library has no way to take up an upload again.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlsplit

from antiphon.errors import NotFound, StoreUnavailable

if TYPE_CHECKING:
    from antiphon.blobs.s3 import Bucket

PART_BYTES = 8 * 1024 * 1024
_MOST_PARTS = 9_000
_TRIES = 3

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are there."""


def no_progress(sent: int, total: int) -> None:
    """Tell nobody."""


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Multipart:
    """Uploads to one bucket with static keys."""

    def __init__(self, bucket: Bucket, timeout: float) -> None:
        self._bucket = bucket
        self._timeout = timeout
        endpoint = bucket.endpoint or f"https://s3.{bucket.region}.amazonaws.com"
        self._url = urlsplit(endpoint)

    def upload(self, name: str, path: Path, progress: Progress = no_progress) -> None:
        """Send *path* as the object *name*, beginning where an earlier try stopped."""
        total = path.stat().st_size
        size = max(PART_BYTES, math.ceil(total / _MOST_PARTS / PART_BYTES) * PART_BYTES)
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
                    tag = self._ask("PUT", name, query, part).headers.get("etag", tag)
                tags.append(tag)
                progress(min(number * size, total), total)
        self._finish(name, upload, tags)

    def _unfinished(self, name: str) -> str | None:
        answer = _tree(self._ask("GET", "", {"uploads": "", "prefix": name}).body)
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
                answer = _tree(self._ask("GET", name, query).body)
            except NotFound:
                return parts
            for item in answer:
                if item.tag == "Part":
                    parts[int(_text(item, "PartNumber"))] = f'"{_text(item, "ETag").strip(chr(34))}"'
            if _text(answer, "IsTruncated") != "true":
                return parts
            marker = _text(answer, "NextPartNumberMarker")

    def _start(self, name: str) -> str:
        return _text(_tree(self._ask("POST", name, {"uploads": ""}).body), "UploadId")

    def _finish(self, name: str, upload: str, tags: list[str]) -> None:
        parts = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{tag}</ETag></Part>" for n, tag in enumerate(tags, 1))
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        answer = self._ask("POST", name, {"uploadId": upload}, body)
        if b"<Error>" in answer.body:  # S3 may answer 200 and say so only then
            raise self._trouble(answer)

    def _ask(self, method: str, name: str, query: Mapping[str, str], body: bytes = b"") -> _Answer:
        for attempt in range(1, _TRIES + 1):
            try:
                answer = self._send(method, name, query, body)
            except (OSError, HTTPException) as error:
                if attempt == _TRIES:
                    raise StoreUnavailable(
                        f"The bucket {self._bucket.url} cannot be reached: {error}.",
                        hint="The parts that arrived are kept there; the upload goes on when it is tried again.",
                    ) from error
            else:
                if answer.status == 404:
                    raise NotFound(f"No such upload in {self._bucket.url}.")
                if answer.status < 300:
                    return answer
                if answer.status < 500 or attempt == _TRIES:
                    raise self._trouble(answer)
            time.sleep(0.1 * 2**attempt)
        raise AssertionError("every path above returns or raises")

    def _send(self, method: str, name: str, query: Mapping[str, str], body: bytes) -> _Answer:
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        path = quote(f"{self._url.path}/{self._bucket.name}/{name}".rstrip("/"), safe="/-_.~")
        words = "&".join(f"{quote(key, safe='-_.~')}={quote(query[key], safe='-_.~')}" for key in sorted(query))
        connection = kind(self._url.netloc, timeout=self._timeout)
        try:
            connection.request(method, f"{path}?{words}", body, self._signed(method, path, words, body))
            answer = connection.getresponse()
            return _Answer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
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

    def _trouble(self, answer: _Answer) -> StoreUnavailable:
        try:
            tree = _tree(answer.body)
            said = f"{_text(tree, 'Code')}: {_text(tree, 'Message')}"
        except StoreUnavailable:
            said = "no reason given"
        return StoreUnavailable(
            f"The bucket {self._bucket.url} refused a part of an upload (HTTP {answer.status}, {said}).",
            hint="Check credentials, region and clock; the parts that arrived are kept there.",
        )


def _tree(body: bytes) -> ET.Element:
    """The answer without name spaces. Documents with a DTD are refused: entities could grow without bound."""
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise StoreUnavailable("The bucket answered with a document that is not to be trusted.")
    try:
        tree = ET.fromstring(body)  # noqa: S314 - no DTD, see above
    except ET.ParseError as error:
        raise StoreUnavailable("The bucket answered with something that is not XML.") from error
    for item in tree.iter():
        item.tag = item.tag.rpartition("}")[2]
    return tree


def _text(item: ET.Element, name: str) -> str:
    return item.findtext(name) or ""
