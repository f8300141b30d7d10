"""The peer: a LangGraph ``@task`` of an entry point with a SQLite checkpointer."""

import json
import shutil
import tempfile
import uuid
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task


def tasks(file, synchronous="FULL"):
    """Tasks of one workflow, one after the other."""
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
            config = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": 1_000_000}
            flow.invoke(n, config, durability="sync")

        yield run
    shutil.rmtree(folder, ignore_errors=True)
