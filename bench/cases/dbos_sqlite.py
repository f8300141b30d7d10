"""The peer: a step of DBOS on SQLite, recorded so that it is not run again."""

import json
import logging
import shutil
import tempfile
from pathlib import Path

from dbos import DBOS


def step(file, batch=100):
    """Steps of workflows of *batch*, one after the other, as it comes: rollback journal, synchronous = FULL."""
    logging.disable(logging.CRITICAL)
    params = json.loads(Path(file).read_bytes())
    folder = tempfile.mkdtemp(prefix="bench-")
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder}/dbos.sqlite"})

    @DBOS.step()
    def send(arguments):
        return {"sent": True, "id": "m-1"}

    @DBOS.workflow()
    def flow(n):
        for _ in range(n):
            send(params)

    DBOS.launch()

    def run(n):
        for done in range(0, n, batch):
            flow(min(batch, n - done))

    yield run
    DBOS.destroy()
    shutil.rmtree(folder, ignore_errors=True)
