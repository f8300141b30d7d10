"""The peer: aws-lambda-powertools' idempotent function on a persistence layer in memory."""

import json
import sys
from pathlib import Path
from unittest.mock import MagicMock


def reused(file):
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
    from aws_lambda_powertools.utilities.idempotency.exceptions import (
        IdempotencyItemAlreadyExistsError,
        IdempotencyItemNotFoundError,
    )
    from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer

    class InMemory(BasePersistenceLayer):
        def __init__(self):
            self.records = {}
            super().__init__()

        def _get_record(self, idempotency_key):
            try:
                return self.records[idempotency_key]
            except KeyError:
                raise IdempotencyItemNotFoundError from None

        def _put_record(self, data_record):
            if data_record.idempotency_key in self.records:
                raise IdempotencyItemAlreadyExistsError
            self.records[data_record.idempotency_key] = data_record

        def _update_record(self, data_record):
            self.records[data_record.idempotency_key] = data_record

        def _delete_record(self, data_record):
            self.records.pop(data_record.idempotency_key, None)

    params = json.loads(Path(file).read_bytes())

    @idempotent_function(
        data_keyword_argument="params",
        config=IdempotencyConfig(expires_after_seconds=86_400),
        persistence_store=InMemory(),
    )
    def send(params):
        return {"ok": True}

    send(params=params)
    return lambda: send(params=params)
