"""The peer: a LangGraph ``@task`` of an entry point with a SQLite checkpointer."""

import json
import shutil
import tempfile
import uuid
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task


def tasks(file, synchronous="FULL", batch=100):
    """Tasks of workflows of *batch*, one after the other: a task costs more the more its workflow has had."""
    params = json.loads(Path(file).read_bytes())
    folder = tempfile.mkdtemp(prefix="bench-")
    with SqliteSaver.from_conn_string(f"{folder}/checkpoints.sqlite") as saver:
        saver.setup()
        saver.conn.execute(f"PRAGMA synchronous = {synchronous}")

        @task
        def send(arguments):
            return {"sent": True, "id": "m-1"}

        @entrypoint(checkpointer=saver)
        def flow(n):
            for _ in range(n):
                send(params).result()
            return n

        def run(n):
            for done in range(0, n, batch):
                config = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": 1_000_000}
                flow.invoke(min(batch, n - done), config, durability="sync")

        yield run
    shutil.rmtree(folder, ignore_errors=True)
