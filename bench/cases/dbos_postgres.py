"""The peer: a step of DBOS on PostgreSQL, recorded so that it is not run again."""

import json
import logging
from pathlib import Path

from dbos import DBOS


def step(dsn, file):
    """Steps of one workflow, one after the other."""
    logging.disable(logging.CRITICAL)
    params = json.loads(Path(file).read_bytes())
    DBOS(config={"name": "bench", "system_database_url": dsn.replace("postgresql://", "postgresql+psycopg://")})

    @DBOS.step()
    def send(arguments):
        return {"sent": True, "id": "m-1"}

    @DBOS.workflow()
    def flow(n):
        for _ in range(n):
            send(params)

    DBOS.launch()

    def run(n):
        flow(n)

    yield run
    DBOS.destroy()
