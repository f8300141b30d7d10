"""A queue worker that sends each invoice once, although the queue delivers at least once (RQ on Redis or Valkey).

    REDIS_URL=redis://localhost:6379/0 python examples/queue_worker.py

The message's own id is the key, so a redelivered message is answered from its record.
"""

import os

import redis
from rq import Queue, SimpleWorker

import antiphon

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
connection = redis.Redis.from_url(URL)
gateway = antiphon.Gateway(store=URL)  # the claims of all workers


@gateway.tool(idempotent=False, effect="write")
def send_invoice(number: str) -> str:
    connection.rpush("example:sent", number)  # stands for the mail server
    return f"sent {number}"


def handle(message: dict[str, str]) -> str:
    """The job. What it returns is the same for the first delivery and for every other one."""
    turn = gateway.session("invoices", actor="worker").turn()
    result = turn.call("send_invoice", {"number": message["number"]}, key=message["id"])
    if not result.ok:
        raise RuntimeError(f"{message['id']}: {result.code}")  # the queue keeps the message for a person
    return str(result.content)


def main() -> None:
    for name in ("example:sent", "rq:queue:invoices"):
        connection.delete(name)
    queue = Queue("invoices", connection=connection)
    run = os.urandom(4).hex()
    messages = [{"id": f"{run}-{number}", "number": number} for number in ("1042", "1043", "1042")]
    messages[2]["id"] = messages[0]["id"]  # the broker delivers the first message again
    for message in messages:
        queue.enqueue(handle, message)
    SimpleWorker([queue], connection=connection).work(burst=True, logging_level="WARNING")
    sent = [number.decode() for number in connection.lrange("example:sent", 0, -1)]
    assert sorted(sent) == ["1042", "1043"], sent
    print(f"3 deliveries, sent {sorted(sent)}")


if __name__ == "__main__":
    import sys

    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from queue_worker import main as run_main  # the worker imports the job by this module's name

    run_main()
