"""Objects in any S3-compatible bucket (AWS, Cloudflare R2, MinIO, SeaweedFS …), through the extra ``s3`` (K7)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from antiphon.blobs._content import ContentBlobs
from antiphon.blobs._multipart import PART_BYTES, Multipart, Progress, no_progress
from antiphon.errors import ConfigError, NotFound, StoreUnavailable, missing_extra

T = TypeVar("T")


class Bucket(NamedTuple):
    """Where a bucket is and who may use it. Without keys the environment's own way of signing in is used."""

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
    access_key: str | None = None,
    secret_key: str | None = None,
    prefix: str = "",
) -> Bucket:
    """Complete what was given from ``R2_*`` (if its key is set) or the standard ``AWS_*`` names, never from both."""
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
    given = {"name": bucket, "endpoint": endpoint, "region": region, "access_key": access_key, "secret_key": secret_key}
    found = found._replace(**{name: value for name, value in given.items() if value}, prefix=prefix.strip("/"))
    if access_key:
        found = found._replace(token="")
    if not found.name:
        raise ConfigError("No bucket is named.", path="bucket", hint="Give bucket=… or set R2_BUCKET_NAME.")
    if found.access_key and not found.secret_key:
        raise ConfigError("An access key is given without its secret.", path="secret_key")
    return found._replace(endpoint=found.endpoint.rstrip("/"), region=found.region or "us-east-1")


class S3Objects:
    """A bucket, or a part of one under a prefix."""

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
        self._do(lambda obstore, store: obstore.put(store, name, data, chunk_size=PART_BYTES))

    def put_once(self, name: str, data: bytes) -> None:
        if len(data) > PART_BYTES:  # a condition on a upload in parts is not for every server
            if self._size(name) != len(data):
                self.put(name, data)
            return
        if not self._do(lambda obstore, store: _create(obstore, store, name, data)) and self._size(name) != len(data):
            self.put(name, data)

    def put_file(self, name: str, path: Path, progress: Progress = no_progress) -> None:
        """Upload a file; one larger than a part goes up in parts, and a broken-off upload goes on where it stopped."""
        if path.stat().st_size <= PART_BYTES:
            self.put(name, path.read_bytes())
        elif self.bucket.access_key and not _behind_proxy(self.bucket.endpoint):
            Multipart(self.bucket, self._timeout).upload(self._full(name), path, progress)
        else:  # a role has no key to sign parts with, and a proxy is the library's affair: in parts, from the start
            self._do(lambda obstore, store: obstore.put(store, name, path, chunk_size=PART_BYTES))

    def get(self, name: str) -> bytes:
        return bytes(self._do(lambda obstore, store: obstore.get(store, name).bytes()))

    def delete(self, name: str) -> None:
        try:
            self._do(lambda obstore, store: obstore.delete(store, name))
        except NotFound:
            return

    def names(self, prefix: str = "") -> Iterator[str]:
        pages = iter(self._do(lambda obstore, store: obstore.list(store, prefix.rstrip("/") or None)))
        while page := self._do(lambda _, __: next(pages, None)):
            for entry in page:
                yield entry["path"]

    def _size(self, name: str) -> int:
        try:
            return int(self._do(lambda obstore, store: obstore.head(store, name)["size"]))
        except NotFound:
            return -1

    def _full(self, name: str) -> str:
        return f"{self.bucket.prefix}/{name}" if self.bucket.prefix else name

    def _do(self, step: Callable[[Any, Any], T]) -> T:
        try:
            import obstore
            from obstore import exceptions
        except ImportError:
            raise missing_extra("obstore", "s3", "An S3-compatible bucket", ">=0.8") from None
        try:
            return step(obstore, self._store())
        except FileNotFoundError:
            raise NotFound(f"No such object in {self.url}.") from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise StoreUnavailable(
                f"The bucket {self.url} refuses these credentials.",
                hint="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or R2_…), and what they may do.",
            ) from error
        except exceptions.BaseError as error:
            raise StoreUnavailable(
                f"The bucket {self.url} cannot be reached or refused the request: {_first_line(error)}",
                hint="Check the endpoint, the region and the network; nothing that was kept is lost.",
            ) from error

    def _store(self) -> Any:
        if self._kept is None or self._pid != os.getpid():  # a client's threads do not survive a fork
            from obstore.store import S3Store

            bucket = self.bucket
            config: Any = {"region": bucket.region, "virtual_hosted_style_request": False}
            for name, value in (
                ("endpoint", bucket.endpoint),
                ("access_key_id", bucket.access_key),
                ("secret_access_key", bucket.secret_key),
                ("token", bucket.token),
            ):
                if value:
                    config[name] = value
            self._kept = S3Store(
                bucket.name,
                prefix=bucket.prefix or None,
                config=config,
                client_options={
                    "timeout": timedelta(seconds=self._timeout),
                    "connect_timeout": timedelta(seconds=min(5.0, self._timeout)),
                    "allow_http": bucket.endpoint.startswith("http://"),
                },
                retry_config={
                    "max_retries": self._retries,
                    "retry_timeout": timedelta(seconds=self._timeout),
                    "backoff": {
                        "init_backoff": timedelta(milliseconds=100),
                        "max_backoff": timedelta(seconds=2),
                        "base": 2,
                    },
                },
            )
            self._pid = os.getpid()
        return self._kept


class S3Blobs(ContentBlobs):
    """Blobs in an S3-compatible bucket; what is not given comes from ``AWS_*`` or ``R2_*`` in the environment."""

    def __init__(
        self,
        bucket: str | None = None,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        prefix: str = "",
        timeout: float = 30.0,
        retries: int = 3,
    ) -> None:
        found = bucket_from(
            os.environ,
            bucket=bucket,
            endpoint=endpoint,
            region=region,
            access_key=access_key,
            secret_key=secret_key,
            prefix=prefix,
        )
        super().__init__(S3Objects(found, timeout=timeout, retries=retries))


def _create(obstore: Any, store: Any, name: str, data: bytes) -> bool:
    """Whether the object is new (``If-None-Match: *``)."""
    try:
        obstore.put(store, name, data, mode="create", use_multipart=False)
    except obstore.exceptions.AlreadyExistsError:
        return False
    return True


def _behind_proxy(endpoint: str) -> bool:
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    place = urlsplit(endpoint or "https://s3.amazonaws.com")
    return place.scheme in getproxies() and not proxy_bypass(place.netloc)


def _first_line(error: Exception) -> str:
    """What went wrong, without the request and its headers that the library adds."""
    return str(error).strip().split("\n", 1)[0][:300]
