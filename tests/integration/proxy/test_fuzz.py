"""A few examples of each fuzz target of the proxy; ``make fuzz`` makes thousands."""

from __future__ import annotations

import base64
import logging
import socket

import pytest

from tests import fuzz, fuzz_proxy


@pytest.mark.parametrize("name", fuzz_proxy.TARGETS)
def test_whatever_comes_in(name: str) -> None:
    assert fuzz.run(fuzz_proxy.TARGETS[name], 12) >= 10


def test_planted_mistakes_are_found() -> None:
    """A connection to elsewhere, an error in the log, and a secret in a file."""
    with fuzz_proxy.world() as world:
        socket.create_connection(("127.0.0.1", world.trap.port)).close()
        world.wait(lambda: world.trap.reached, "nobody came")
        with pytest.raises(fuzz_proxy.Found, match="none of its upstreams"):
            world.check()
        logging.getLogger("antiphon.proxy").error("a request failed")
        with pytest.raises(fuzz_proxy.Found, match="a request failed"):
            world.check()
        leak = world.folder / "leak"
        leak.write_bytes(b"x" + world.secret() + b"y")
        with pytest.raises(fuzz_proxy.Found, match="a secret is in"):
            world.search()
        leak.write_bytes(base64.b64encode(leak.read_bytes()))
        with pytest.raises(fuzz_proxy.Found, match="a secret is in"):
            world.search()
        leak.unlink()
