"""Ways in which replayed code could reach the world without Antiphon, and a world in which that would show.

Each attempt is a function of a :class:`World`. It acts at once, or prepares something and returns what sets it off
after the replay has ended.
"""

# mypy: disable-error-code="func-returns-value"

from __future__ import annotations

import _thread
import asyncio
import atexit
import concurrent.futures
import contextlib
import dbm.dumb
import functools
import gc
import gzip
import http.client
import logging
import logging.handlers
import mmap
import multiprocessing
import multiprocessing.pool
import multiprocessing.shared_memory
import multiprocessing.util
import os
import pathlib
import pickle
import sched
import shelve
import shutil
import signal
import smtplib
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
import urllib.request
import weakref
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

Attempt = Callable[["World"], "Callable[[], object] | None"]
ATTEMPTS: dict[str, Attempt] = {}


class World:
    """A folder, a server and a database. :meth:`state` tells everything that an effect would change."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        (folder / "kept.txt").write_text("kept")
        (folder / "sub").mkdir()
        self.database = sqlite3.connect(folder / "old.db", check_same_thread=False)
        self.database.execute("create table t (x)")
        self.database.execute("insert into t values (1)")
        self.database.commit()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.link = socket.create_connection(("127.0.0.1", self.port))
        self.local_listener = socket.socket(socket.AF_UNIX)
        self.local_listener.bind(str(folder / "local.sock"))
        self.local_listener.listen()
        self.local = socket.socket(socket.AF_UNIX)
        self.local.connect(str(folder / "local.sock"))
        self.local_end, _ = self.local_listener.accept()
        self.local_end.setblocking(False)
        self.received = 0
        self.visits = 0
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.pool.submit(int).result()
        self.threads = multiprocessing.pool.ThreadPool(1)
        self.threads.apply(int)
        while self.visits < 1:
            time.sleep(0.001)

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            self.visits += 1
            threading.Thread(target=self._read, args=(link,), daemon=True).start()

    def _read(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            while data := link.recv(4096):
                self.received += len(data)

    def path(self, name: str = "never.txt") -> str:
        return str(self.folder / name)

    def state(self) -> list[object]:
        files = sorted(
            (str(path), path.lstat().st_mode, path.lstat().st_mtime_ns, path.lstat().st_size)
            for path in self.folder.rglob("*")
            if path.suffix not in (".db-journal", ".db-wal", ".db-shm")
        )
        rows = self.database.execute("select count(*) from t").fetchone()
        shared = sorted(name for name in os.listdir("/dev/shm") if name.startswith("never"))
        with contextlib.suppress(BlockingIOError):
            self.received += len(self.local_end.recv(4096))
        return [files, rows, self.visits, self.received, shared]

    def close(self) -> None:
        self.pool.shutdown()
        self.threads.terminate()
        for link in (self.listener, self.link, self.local_listener, self.local, self.local_end):
            link.close()
        self.database.close()


def attempt(function: Attempt) -> Attempt:
    ATTEMPTS[function.__name__] = function
    return function


def _write(world: World) -> None:
    pathlib.Path(world.path()).write_text("x")


# -- files ---------------------------------------------------------------------------------------------------------

for _name, _act in {
    "open_for_writing": lambda w: open(w.path(), "w"),
    "open_for_appending": lambda w: open(w.path("kept.txt"), "a"),
    "open_exclusively": lambda w: open(w.path(), "x"),
    "os_open": lambda w: os.open(w.path(), os.O_CREAT | os.O_WRONLY),
    "path_write_text": lambda w: _write(w),
    "path_touch": lambda w: pathlib.Path(w.path()).touch(),
    "remove": lambda w: os.remove(w.path("kept.txt")),
    "unlink": lambda w: pathlib.Path(w.path("kept.txt")).unlink(),
    "rename": lambda w: os.rename(w.path("kept.txt"), w.path()),
    "replace": lambda w: os.replace(w.path("kept.txt"), w.path()),
    "mkdir": lambda w: os.mkdir(w.path("never")),
    "makedirs": lambda w: os.makedirs(w.path("never/never")),
    "rmdir": lambda w: os.rmdir(w.path("sub")),
    "rmtree": lambda w: shutil.rmtree(w.path("sub")),
    "symlink": lambda w: os.symlink("/etc/hosts", w.path()),
    "hard_link": lambda w: os.link(w.path("kept.txt"), w.path()),
    "write_through_a_hard_link": lambda w: _write_to(w.path("kept.txt"), os.link),
    "write_through_a_symlink": lambda w: _write_to(w.path("kept.txt"), os.symlink),
    "copy_of_hard_links": lambda w: shutil.copytree(w.folder, f"{tempfile.mkdtemp()}/copy", copy_function=os.link),
    "reopen": lambda w: open(f"/proc/self/fd/{os.open(w.path('kept.txt'), os.O_RDONLY)}", "a").write("x"),
    "truncate": lambda w: os.truncate(w.path("kept.txt"), 0),
    "chmod": lambda w: os.chmod(w.path("kept.txt"), 0o777),
    "utime": lambda w: os.utime(w.path("kept.txt"), (1, 1)),
    "mkfifo": lambda w: os.mkfifo(w.path()),
    "mkfifo_by_name": lambda w: os.mkfifo(mode=0o600, path=w.path()),
    "copy": lambda w: shutil.copy(w.path("kept.txt"), w.path()),
    "move": lambda w: shutil.move(w.path("kept.txt"), w.path()),
    "archive": lambda w: shutil.make_archive(w.path("never"), "zip", w.path("sub")),
    "zip_file": lambda w: zipfile.ZipFile(w.path(), "w"),
    "gzip_file": lambda w: gzip.open(w.path(), "wb"),
    "shelf": lambda w: shelve.open(w.path("never")),
    "dbm_file": lambda w: dbm.dumb.open(w.path("never"), "c"),
    "log_file": lambda w: logging.FileHandler(w.path()),
    "temporary_file_elsewhere": lambda w: tempfile.NamedTemporaryFile(dir=w.path("sub"), delete=False),
    "file_in_the_temporary_folder": lambda w: _write(w),
    "pickle_file": lambda w: pickle.dump(1, open(w.path(), "wb")),
    "through_a_link": lambda w: open(f"{w.folder}/sub/../never.txt", "w"),
    "from_another_folder": lambda w: _from_folder(w.folder, lambda: open("never.txt", "w")),
    "from_an_open_folder": lambda w: _from_folder(
        tempfile.mkdtemp(),
        lambda: os.open("never.txt", os.O_CREAT | os.O_WRONLY, dir_fd=os.open(w.folder, os.O_RDONLY)),
    ),
    "link_from_an_open_folder": lambda w: os.link(
        "kept.txt",
        "copy.txt",
        src_dir_fd=os.open(w.folder, os.O_RDONLY),
        dst_dir_fd=os.open(tempfile.mkdtemp(), os.O_RDONLY),
    ),
    "mapped_file": lambda w: mmap.mmap(os.open(w.path("kept.txt"), os.O_RDWR), 4).write(b"gone"),
}.items():
    ATTEMPTS[_name] = functools.partial(lambda act, world: (act(world), None)[1], _act)


def _write_to(path: str, link: Callable[[str, str], None]) -> None:
    """Write to a file by another name, in a folder where writing is allowed."""
    name = f"{tempfile.mkdtemp()}/copy.txt"
    link(path, name)
    pathlib.Path(name).write_text("gone")


def _from_folder(folder: str | pathlib.Path, act: Callable[[], object]) -> None:
    before = os.getcwd()
    os.chdir(folder)
    try:
        act()
    finally:
        os.chdir(before)


# -- databases -----------------------------------------------------------------------------------------------------

for _name, _act in {
    "sqlite_new_file": lambda w: sqlite3.connect(w.path("never.db")),
    "sqlite_uri": lambda w: sqlite3.connect(f"file:{w.path('never.db')}?mode=rwc", uri=True),
    "sqlite_existing_file": lambda w: sqlite3.connect(w.path("old.db")).execute("insert into t values (2)"),
    "sqlite_old_connection": lambda w: w.database.execute("insert into t values (2)").connection.commit(),
    "sqlite_prepared_statement": lambda w: w.database.executemany("insert into t values (?)", [(2,)]),
    "sqlite_script": lambda w: w.database.executescript("delete from t; drop table t"),
    "sqlite_attach": lambda w: sqlite3.connect(":memory:").execute(f"attach '{w.path('never.db')}' as n"),
    "sqlite_vacuum_into": lambda w: w.database.execute(f"vacuum into '{w.path('never.db')}'"),
}.items():
    ATTEMPTS[_name] = functools.partial(lambda act, world: (act(world), None)[1], _act)

# -- network -------------------------------------------------------------------------------------------------------

for _name, _act in {
    "connect": lambda w: socket.create_connection(("127.0.0.1", w.port)),
    "connect_ex": lambda w: socket.socket().connect_ex(("127.0.0.1", w.port)),
    "old_connection": lambda w: w.link.sendall(b"x"),
    "old_connection_by_number": lambda w: os.write(w.link.fileno(), b"x"),
    "old_connection_sendfile": lambda w: w.link.sendfile(open(__file__, "rb")),
    "old_local_connection": lambda w: w.local.sendall(b"x"),
    "old_local_connection_message": lambda w: w.local.sendmsg([b"x"]),
    "old_local_connection_by_number": lambda w: os.write(w.local.fileno(), b"x"),
    "datagram": lambda w: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", w.port)),
    "name_lookup": lambda w: socket.getaddrinfo("localhost", 80),
    "host_name": lambda w: socket.gethostbyname("localhost"),
    "bind": lambda w: socket.create_server(("127.0.0.1", 0)),
    "bind_everywhere": lambda w: socket.socket().bind(("0.0.0.0", 0)),
    "listen_without_binding": lambda w: socket.socket().listen(),
    "http_client": lambda w: http.client.HTTPConnection("127.0.0.1", w.port, timeout=1).request("GET", "/"),
    "urlopen": lambda w: urllib.request.urlopen(f"http://127.0.0.1:{w.port}", timeout=1),
    "mail": lambda w: smtplib.SMTP("127.0.0.1", w.port, timeout=1),
    "log_server": lambda w: _log_to(w),
    "asyncio_connection": lambda w: asyncio.run(_connect(w)),
}.items():
    ATTEMPTS[_name] = functools.partial(lambda act, world: (act(world), None)[1], _act)


def _log_to(world: World) -> None:
    handler = logging.handlers.SocketHandler("127.0.0.1", world.port)
    handler.createSocket()


async def _connect(world: World) -> None:
    await asyncio.open_connection("127.0.0.1", world.port)


# -- processes -----------------------------------------------------------------------------------------------------


def _spawn(world: World) -> None:
    multiprocessing.get_context("spawn").Process(target=int).start()


def _fork_process(world: World) -> None:
    multiprocessing.get_context("fork").Process(target=int).start()


def _fork(world: World) -> None:
    if os.fork() == 0:
        os._exit(0)


for _name, _act in {
    "subprocess_run": lambda w: subprocess.run(["touch", w.path()], check=False),
    "popen": lambda w: subprocess.Popen(["touch", w.path()]),
    "shell": lambda w: os.system(f"touch {w.path()}"),
    "os_popen": lambda w: os.popen(f"touch {w.path()}"),
    "posix_spawn": lambda w: os.posix_spawn("/bin/touch", ["touch", w.path()], {}),
    "spawnv": lambda w: os.spawnv(os.P_WAIT, "/bin/touch", ["touch", w.path()]),
    "fork": _fork,
    "multiprocessing_fork": _fork_process,
    "multiprocessing_spawn": _spawn,
    "process_pool": lambda w: concurrent.futures.ProcessPoolExecutor(1).submit(int).result(),
    "asyncio_subprocess": lambda w: asyncio.run(_run(w)),
    "signal_to_another_process": lambda w: os.kill(os.getppid(), 0),
    "signal_by_descriptor": lambda w: signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0),
    "shared_memory": lambda w: multiprocessing.shared_memory.SharedMemory("never", create=True, size=8),
    "exec": lambda w: os.execv("/bin/touch", ["touch", w.path()]),
}.items():
    ATTEMPTS[_name] = functools.partial(lambda act, world: (act(world), None)[1], _act)


async def _run(world: World) -> None:
    await asyncio.create_subprocess_exec("touch", world.path())


# -- in other threads and tasks, while the replay runs -----------------------------------------------------------------


def _in_thread(start: Callable[[Callable[[], None]], object], world: World) -> None:
    done = threading.Event()

    def act() -> None:
        try:
            _write(world)
        finally:
            done.set()

    start(act)
    done.wait(10)


for _name, _start in {
    "thread": lambda w: lambda act: threading.Thread(target=act).start(),
    "raw_thread": lambda w: lambda act: _thread.start_new_thread(act, ()),
    "timer": lambda w: lambda act: threading.Timer(0, act).start(),
    "old_executor": lambda w: lambda act: w.pool.submit(act),
    "new_executor": lambda w: lambda act: concurrent.futures.ThreadPoolExecutor(1).submit(act),
    "old_thread_pool": lambda w: lambda act: w.threads.apply_async(act),
    "old_thread_pool_by_name": lambda w: lambda act: w.threads.apply_async(func=act),
    "old_thread_pool_map": lambda w: lambda act: w.threads.map_async(lambda _: act(), [1]),
    "scheduler": lambda w: lambda act: _scheduled(act),
    "to_thread": lambda w: lambda act: asyncio.run(asyncio.to_thread(act)),
    "thread_of_a_thread": lambda w: (
        lambda act: threading.Thread(target=lambda: threading.Thread(target=act).start()).start()
    ),
}.items():
    ATTEMPTS[_name] = functools.partial(lambda start, world: _in_thread(start(world), world), _start)


def _scheduled(act: Callable[[], None]) -> None:
    plan = sched.scheduler()
    plan.enter(0, 1, act)
    plan.run()


# -- after the end -------------------------------------------------------------------------------------------------


@attempt
def late_thread(world: World) -> Callable[[], object]:
    go = threading.Event()
    thread = threading.Thread(target=lambda: (go.wait(), _write(world)))
    thread.start()
    return lambda: (go.set(), thread.join())


@attempt
def late_executor(world: World) -> Callable[[], object]:
    go = threading.Event()
    future = world.pool.submit(lambda: (go.wait(), _write(world)))
    return lambda: (go.set(), concurrent.futures.wait([future]))


@attempt
def late_done_callback(world: World) -> Callable[[], object]:
    return _late_callback(world, lambda future, act: future.add_done_callback(act))


@attempt
def late_done_callback_by_name(world: World) -> Callable[[], object]:
    return _late_callback(world, lambda future, act: future.add_done_callback(fn=act))


def _late_callback(world: World, add: Callable[[Any, Callable[[Any], None]], None]) -> Callable[[], object]:
    go = threading.Event()
    future = world.pool.submit(go.wait)
    thread_done = threading.Event()

    def act(_: Any) -> None:
        try:
            _write(world)
        finally:
            thread_done.set()

    add(future, act)
    return lambda: (go.set(), thread_done.wait(10))


@attempt
def late_signal_handler(world: World) -> Callable[[], object]:
    before = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: _write(world))

    def fire() -> None:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0)
        finally:
            signal.signal(signal.SIGUSR1, before)

    return fire


class _Thing:
    pass


@attempt
def late_finalizer(world: World) -> Callable[[], object]:
    things = [_Thing()]
    weakref.finalize(things[0], _write, world)
    return lambda: (things.clear(), gc.collect())


class _Deleted:
    def __init__(self, world: World) -> None:
        self.world = world

    def __del__(self) -> None:
        _write(self.world)


@attempt
def late_del(world: World) -> Callable[[], object]:
    things = [_Deleted(world)]
    return lambda: (things.clear(), gc.collect())


@attempt
def del_in_a_cycle(world: World) -> Callable[[], object]:
    thing: Any = _Deleted(world)
    thing.me = thing
    return gc.collect


def _open_generator(world: World) -> Iterator[int]:
    try:
        yield 1
    finally:
        _write(world)


@attempt
def late_generator_close(world: World) -> Callable[[], object]:
    generator: Any = _open_generator(world)
    next(generator)
    return lambda: generator.close()


@attempt
def late_generator_collected(world: World) -> Callable[[], object]:
    things: list[Any] = [_open_generator(world)]
    next(things[0])
    return lambda: (things.clear(), gc.collect())


@attempt
def late_gc_callback(world: World) -> Callable[[], object]:
    def act(phase: str, info: Any) -> None:
        _write(world)

    gc.callbacks.append(act)

    def fire() -> None:
        gc.collect()
        gc.callbacks.pop()

    return fire


@attempt
def late_exit_handler(world: World) -> Callable[[], object]:
    atexit.register(_write, world)
    registered = atexit._ncallbacks()

    def fire() -> None:
        assert registered
        atexit.unregister(_write)  # what the end of the process would do is shown with the command line

    return fire


@attempt
def late_loop_callback(world: World) -> Callable[[], object]:
    loop = asyncio.new_event_loop()
    loop.call_soon(_write, world)
    loop.call_soon(loop.stop)
    return lambda: (loop.run_forever(), loop.close())


@attempt
def late_coroutine_threadsafe(world: World) -> Callable[[], object]:
    loop = asyncio.new_event_loop()

    async def act() -> None:
        _write(world)

    asyncio.run_coroutine_threadsafe(act(), loop)
    return lambda: (loop.run_until_complete(asyncio.sleep(0.01)), loop.close())


@attempt
def late_timer(world: World) -> Callable[[], object]:
    timer = threading.Timer(0.05, _write, (world,))
    timer.start()
    return timer.join
