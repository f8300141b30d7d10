"""Fixtures for all tests: the session's real servers, private servers, faults, a browser. Loopback only."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

import pytest
from hypothesis import settings

from bench._envs import PeerUnavailable, python_of
from tests import browser, nodejs, sharing
from tests import promtool as prometheus
from tests.faultproxy import FaultProxy
from tests.servers import S3_KEY, S3_SECRET, VARIABLES, Postgres, Server, ServerFailed, Valkey, Weed
from tests.ticks import Ticks
from tests.tlsfront import make_certificate

S = TypeVar("S", bound=Server)
MEETING = "ANTIPHON_TEST_MEETING"
"""Names the folder where the worker processes of one session find their servers."""
PEERS = Path(__file__).resolve().parent / "peers"
AUTHORITIES = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}

# A run started in the background ignores Ctrl-C, and so would every process it starts; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is collected is compiled once, whatever the environment says. What a test writes is not: a module that changes
# twice within a second and keeps its size would be taken for the old one.
sys.dont_write_bytecode = False
gc.disable()  # … while a million objects are made that stay

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "local"))


def _refuse_other_hosts(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = str(arguments[1][0])
        if not (host.startswith("127.") or host in ("::1", "localhost", "0.0.0.0", "::")):
            raise PermissionError(f"a test tried to reach {host}: tests stay on loopback")


sys.addaudithook(_refuse_other_hosts)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Make the session's meeting folder; workers find it in their environment."""
    if not _is_worker(config):
        folder = tempfile.mkdtemp(prefix="antiphon-session-")
        Path(folder, "owner").write_text(str(os.getpid()))
        os.environ[MEETING] = folder


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers that this session started; the next one in this process finds the environment as it was."""
    for name, value in AUTHORITIES.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if not _is_worker(config) and (folder := os.environ.pop(MEETING, None)):
        sharing.stop_all(Path(folder))
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install the browser, promtool, npm packages and LiteLLM before the clock of a test runs, if a test wants them."""
    gc.enable()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if "chromium" in wanted:
        with contextlib.suppress(browser.NoBrowser):  # the fixture reports the reason
            browser.ensure(Path(os.environ[MEETING]))
    if "promtool" in wanted:
        with contextlib.suppress(prometheus.NoPromtool):
            prometheus.ensure(Path(os.environ[MEETING]))
    if "node" in wanted:
        with contextlib.suppress(nodejs.NoNode):
            nodejs.ensure(Path(os.environ[MEETING]))
    if "litellm_python" in wanted:
        with contextlib.suppress(PeerUnavailable):
            python_of("litellm", PEERS)
    _trust_one_authority(Path(os.environ[MEETING]))


def _trust_one_authority(folder: Path) -> None:
    """Whoever makes an HTTP client reads all certificates of authorities, which takes 50 ms; one is read at once.

    Tests stay on loopback: nothing in this process and those it starts needs them from here on.
    """
    authority = folder / f"authority-{os.getpid()}.pem"
    authority.write_bytes(make_certificate("nobody")[0])
    os.environ["SSL_CERT_FILE"] = str(authority)
    os.environ.pop("SSL_CERT_DIR", None)


def _address(kind: str) -> str:
    folder = Path(os.environ[MEETING])
    return os.environ.get(VARIABLES[kind]) or sharing.shared(kind, folder, int((folder / "owner").read_text()))


def _worker_number() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


@pytest.fixture
def ticks() -> Iterator[Ticks]:
    """A clock that stands still while the machine does: ``assert ticks.since(began) < 1``."""
    with Ticks() as clock:
        yield clock


@pytest.fixture
def unique() -> str:
    """A name no other test has: for prefixes, tenants, keys."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def valkey_url() -> str:
    """The session's Redis-compatible server, one logical database per worker process."""
    address = urlsplit(_address("valkey"))
    if os.environ.get(VARIABLES["valkey"]):
        return urlunsplit(address)
    return urlunsplit(address._replace(path=f"/{_worker_number() % 16}"))


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    """An empty database of this worker process on the session's PostgreSQL server."""
    with _database(_address("postgres")) as dsn:
        yield dsn


@pytest.fixture
def postgres_database() -> Iterator[str]:
    """An empty database of this one test."""
    with _database(_address("postgres")) as dsn:
        yield dsn


@contextlib.contextmanager
def _database(server: str) -> Iterator[str]:
    import psycopg

    name = f"antiphon_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name} template template0")
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"drop database if exists {name} with (force)")


class S3Access(NamedTuple):
    """What a client needs to reach a bucket."""

    endpoint: str
    bucket: str
    key: str
    secret: str
    region: str


@pytest.fixture(scope="session")
def s3_endpoint() -> str:
    """The session's S3-compatible server."""
    return _address("s3")


@pytest.fixture
def s3_access(s3_endpoint: str, unique: str) -> S3Access:
    """An empty bucket of this one test (of an existing server: ANTIPHON_TEST_S3_BUCKET, with key and secret)."""
    region = os.environ.get("ANTIPHON_TEST_S3_REGION", "us-east-1")
    if os.environ.get(VARIABLES["s3"]):
        bucket, key, secret = (os.environ.get(f"ANTIPHON_TEST_S3_{word}", "") for word in ("BUCKET", "KEY", "SECRET"))
        if not (bucket and key and secret):
            raise ServerFailed("ANTIPHON_TEST_S3_ENDPOINT needs ANTIPHON_TEST_S3_BUCKET, _KEY and _SECRET beside it")
        return S3Access(s3_endpoint, bucket, key, secret, region)
    Weed.make_bucket(s3_endpoint, unique)
    return S3Access(s3_endpoint, unique, S3_KEY, S3_SECRET, region)


@pytest.fixture
def valkey_server() -> Iterator[Callable[..., Valkey]]:
    """Start private servers: ``server = valkey_server(appendonly=True, maxmemory="4mb", replicaof=other)``."""
    yield from _starter(Valkey)


@pytest.fixture
def postgres_server() -> Iterator[Callable[..., Postgres]]:
    """Start private servers: ``server = postgres_server(settings={"fsync": "on"})``."""
    yield from _starter(Postgres)


def _starter(kind: type[S]) -> Iterator[Callable[..., S]]:
    with contextlib.ExitStack() as running:

        def start(**options: Any) -> S:
            server = kind(**options)
            running.enter_context(server)
            return server

        yield start


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[int], FaultProxy]]:
    """Put a misbehaving network before a port: ``proxy = fault_proxy(server.port)``."""
    with contextlib.ExitStack() as running:
        yield lambda port: running.enter_context(FaultProxy(port))


@pytest.fixture(scope="session")
def node() -> nodejs.Node:
    """Node with the packages of ``tests/node``; installed by the test run when they are missing."""
    return nodejs.ensure(Path(os.environ[MEETING]))


@pytest.fixture(scope="session")
def litellm_python() -> str:
    """The interpreter of LiteLLM's environment, which has other versions of what it needs than ours."""
    return str(python_of("litellm", PEERS))


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium to drive; installed by the test run when it is missing."""
    return browser.ensure(Path(os.environ[MEETING]))


@pytest.fixture(scope="session")
def promtool() -> str:
    """The path of Prometheus' promtool; fetched by the test run when it is missing."""
    return prometheus.ensure(Path(os.environ[MEETING]))
