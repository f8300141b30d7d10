"""The bucket that settings and environment name (K7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from antiphon.config.dotenv import environment
from antiphon.config.model import ArtifactsSection, Config
from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from antiphon.blobs.s3 import Bucket, S3Objects


def bucket_of(section: ArtifactsSection, given: Mapping[str, str] | None = None, folder: str = "") -> Bucket:
    """Where exported runs go; *folder* is a part of the bucket below the configured prefix."""
    from antiphon.blobs.s3 import bucket_from

    if section.backend == "local":
        raise ConfigError(
            "No bucket is configured: [artifacts] backend is 'local'.",
            hint='Set backend = "s3" and bucket in antiphon.toml, or KURRAL_STORAGE_BACKEND=r2 and R2_BUCKET_NAME.',
            path="[artifacts]",
        )
    env = dict(environment() if given is None else given)
    if section.backend == "s3" and env.get("AWS_ACCESS_KEY_ID"):
        env.pop("R2_ACCESS_KEY_ID", None)
    found = bucket_from(
        env,
        bucket=section.bucket,
        endpoint=section.endpoint_url,
        region=section.region,
        prefix="/".join(part for part in (section.prefix.strip("/"), folder) if part),
    )
    if found.region == "auto" and str(urlsplit(found.endpoint).hostname or "").endswith("amazonaws.com"):
        found = found._replace(region=env.get("AWS_REGION") or "us-east-1")
    return found


def objects_of(section: ArtifactsSection, folder: str = "") -> S3Objects:
    """The objects of the configured bucket."""
    from antiphon.blobs.s3 import S3Objects

    return S3Objects(bucket_of(section, folder=folder), timeout=section.timeout_s, retries=1)


def payloads_in_bucket(config: Config) -> bool:
    """Whether large payloads go to the bucket: when asked for, or when the run log is shared and the disk is not."""
    section = config.artifacts
    if section.payloads != "auto" or section.backend == "local":
        return section.payloads == "bucket"
    log = config.store.log or config.store.url or "sqlite:"
    return not log.startswith(("sqlite", "memory"))
