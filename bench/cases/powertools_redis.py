"""aws-lambda-powertools' idempotent function on Redis."""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from unittest.mock import MagicMock

import redis

_serial = itertools.count(time.time_ns() // 1_000_000 * 1000)


def _guarded(url, file):
    # The package imports its DynamoDB layer too, which these cases do not use.
    for name in (
        "boto3",
        "boto3.dynamodb",
        "boto3.dynamodb.types",
        "botocore",
        "botocore.config",
        "botocore.exceptions",
    ):
        sys.modules.setdefault(name, MagicMock())
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

    client = redis.Redis.from_url(url)
    params = json.loads(Path(file).read_bytes())

    @idempotent_function(
        data_keyword_argument="params",
        config=IdempotencyConfig(expires_after_seconds=86_400),
        persistence_store=RedisCachePersistenceLayer(client=client),
    )
    def send(params):
        return {"ok": True}

    return client, send, params


def miss(url, file):
    client, send, params = _guarded(url, file)
    yield lambda: send(params={**params, "serial": next(_serial)})
    client.close()


def reused(url, file):
    client, send, params = _guarded(url, file)
    send(params=params)
    yield lambda: send(params=params)
    client.close()
