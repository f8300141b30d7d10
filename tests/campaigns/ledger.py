"""The provider of the payment campaign, a process of its own: it charges whatever it is asked and counts in a file.

    python -m tests.campaigns.ledger PORT FILE LOSES

It answers one request after the other, in the order of the connections. *LOSES* is the share of charges whose answer it
loses: charged, and the connection closed. It loses those of keys that begin with ``lost-``, too.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Ledger(BaseHTTPRequestHandler):
    """``POST /charges`` charges, ``GET /charges?key=`` says what was charged."""

    file: Path
    loses = 0.0
    charges: dict[str, Any] = {}
    timeout = 5

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        charged = {"charge": f"ch_{len(self.charges) + 1}", "order": body["order"], "cents": body["cents"]}
        handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(handle, f"{json.dumps([body['key'], body['cents']])}\n".encode())
        os.close(handle)
        self.charges[body["key"]] = charged
        time.sleep(random.random() * 0.004)  # a worker may be killed meanwhile
        if ":lost-" not in body["key"] and random.random() >= self.loses:
            self._answer(charged)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        self._answer(self.charges.get(query["key"][0]) if "key" in query else {})

    def _answer(self, value: Any) -> None:
        data = json.dumps(value).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # the worker was killed

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


def main() -> None:
    Ledger.file, Ledger.loses = Path(sys.argv[2]), float(sys.argv[3])
    server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Ledger)
    server.request_queue_size = 128
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.serve_forever()


if __name__ == "__main__":
    main()
