"""What all commands share: how they are declared, errors as exit codes, tables, JSON output, progress."""

from __future__ import annotations

import argparse
import codecs
import difflib
import errno
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from antiphon import errors
from antiphon.cli import EXIT
from antiphon.cli import _ui as ui

T = TypeVar("T")

_EXIT_OF: tuple[tuple[type[errors.AntiphonError], str], ...] = (
    (errors.Divergence, "diverged"),
    (errors.ReplayBlocked, "blocked"),
    (errors.MissingExtra, "entry"),
    (errors.ArtifactError, "unreadable"),
    (errors.StoreVersionError, "unreadable"),
    (errors.NotFound, "not_found"),
    (errors.InvalidInput, "usage"),
)


def exit_code(error: errors.AntiphonError) -> int:
    """The documented exit code of an error."""
    if error.code in ("entry_missing", "model_missing"):
        return EXIT["entry"]
    if error.code == "not_found":
        return EXIT["not_found"]
    return next((EXIT[name] for kind, name in _EXIT_OF if isinstance(error, kind)), 1)


Argument = Callable[[Any], Any]
"""Adds itself to a parser or to a group of one."""
Run = Callable[[argparse.Namespace], int]


def argument(*names: str, **options: Any) -> Argument:
    """An argument, in argparse's words."""
    return lambda parser: parser.add_argument(*names, **options)


def flag(name: str, text: str) -> Argument:
    """An option without a value."""
    return argument(name, action="store_true", help=text)


def no_sandbox(whose: str) -> Argument:
    """``--no-sandbox``; ``--no-fence`` is its name of 0.1.0."""

    def add(parser: Any) -> None:
        text = f"no sandbox: {whose} may use files, sockets and processes"
        parser.add_argument("--no-sandbox", action="store_true", help=text)
        parser.add_argument("--no-fence", dest="no_sandbox", action="store_true", help=argparse.SUPPRESS)

    return add


def repeated(name: str, metavar: str, text: str) -> Argument:
    """An option that may be given several times."""
    return argument(name, action="append", default=[], metavar=metavar, help=text)


def group(title: str, *arguments: Argument) -> Argument:
    """Arguments below a title of their own."""
    return lambda parser: _add(parser.add_argument_group(title), arguments)


def one_of(*arguments: Argument) -> Argument:
    """Options that exclude each other."""
    return lambda parser: _add(parser.add_mutually_exclusive_group(), arguments)


def _add(parser: Any, arguments: Iterable[Argument]) -> None:
    for add in arguments:
        add(parser)


def CONFIG(parser: Any) -> None:  # noqa: N802 - an argument like those below
    """``--config`` and ``--store``: what a command works on."""
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: antiphon.toml)")
    text = "store to use: a SQLite file or a URL (default: the configured one)"
    parser.add_argument("--store", metavar="STORE", help=text)


JSON = flag("--json", "print JSON")
TENANT = argument("--tenant", help="whose (default: the configured tenant)")
LATEST = flag("--latest", "the latest run")
RUN = (argument("run", nargs="?", help="run id or a unique prefix (default: the latest run)"), LATEST)


class Parser(argparse.ArgumentParser):
    """Suggests the name that was probably meant."""

    as_json = False

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, the nearest valid word if there is one, and where the help is."""
        words = re.findall(r"--[\w-]+", message) if message.startswith("unrecognized arguments") else []
        known = list(self._option_string_actions)
        chosen = re.match(r"argument .*invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if chosen:
            words, known = [chosen[1]], re.findall(r"[\w.-]+", chosen[2])
        near = [found for word in words for found in difflib.get_close_matches(word, known, n=1, cutoff=0.7)]
        hint = f"Did you mean {' '.join(near)}? " if near else ""
        hint += f"See: {self.prog} --help"
        if self.as_json:
            report(errors.InvalidInput(f"{message}.", hint=hint), as_json=True)
            self.exit(EXIT["usage"])
        self.exit(EXIT["usage"], f"{self.prog}: {message}. {hint}\n")


class Command(NamedTuple):
    """What a name stands for: its help is the function's docstring, the part from the examples on at the end."""

    run: Run
    arguments: tuple[Argument, ...]

    def parser(self, name: str) -> Parser:
        text = inspect.cleandoc(self.run.__doc__ or "")
        start = text.find("\n\nexample")
        parser = Parser(
            prog=f"antiphon {name}",
            description=text if start < 0 else text[:start],
            epilog=None if start < 0 else text[start + 2 :],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add(parser, self.arguments)
        return parser

    def parse(self, name: str, words: list[str], known: argparse.Namespace | None = None) -> argparse.Namespace:
        """Options may stand before, between and behind the other words; behind ``--`` there are none.

        ``parse_intermixed_args`` does the same but loses words behind ``--``. If the rest of the line is another
        command line, what is *known* from an earlier part of it holds unless *words* say otherwise.
        """
        parser, options = self.parser(name), self.parser(name)
        if any(action.nargs == argparse.REMAINDER for action in parser._actions):
            return parser.parse_args(words, known)
        options._actions[:] = [action for action in options._actions if action.option_strings]
        options.format_help = parser.format_help  # type: ignore[method-assign]
        end = words.index("--") if "--" in words else len(words)
        parser.as_json = options.as_json = "--json" in words[:end] and "--json" in parser._option_string_actions
        found, rest = options.parse_known_args(words[:end])
        for action in parser._actions:
            action.required = action.required and not action.option_strings  # options were already parsed
        return parser.parse_args([*rest, *words[end:]], found)


def command(*arguments: Argument) -> Callable[[Run], Command]:
    """Make a function that returns an exit code a command with these arguments."""
    return lambda function: Command(function, arguments)


def find(place: str) -> Command:
    """The command at ``module:name``."""
    module, _, name = place.partition(":")
    found: Command = getattr(import_module(module), name)
    return found


def call(name: str, command: Command, words: list[str], known: argparse.Namespace | None = None) -> int:
    """Parse, run, and turn errors into one line on standard error and an exit code."""
    arguments = command.parse(name, words, known)
    code = _SIGPIPE
    try:
        with _named_store(arguments, makes=name in _MAKES_STORE):
            code = int(command.run(arguments) or 0)
        sys.stdout.flush()
        return code
    except errors.AntiphonError as error:
        report(error, getattr(arguments, "json", False))
        return exit_code(error)
    except BrokenPipeError:  # the reader closed the pipe: use the exit code if there is one already
        _give_up_output()
        return code
    except OSError as error:  # a given file cannot be read or written
        if error.filename is None:
            if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
                raise
            print(f"antiphon: The output cannot be written: {error.strerror}.", file=sys.stderr)
            _give_up_output()
            return 1
        report(errors.InvalidInput(f"{error.filename}: {error.strerror}."), getattr(arguments, "json", False))
        return EXIT["usage"]
    except KeyboardInterrupt:
        return interrupted(getattr(arguments, "json", False))


_SIGPIPE = 128 + 13
"""What shells say of a program that was ended because nobody read its output."""


def _give_up_output() -> None:
    """What is still to be written to an output that takes no more goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_SIGNS = {"✓": "ok", "✗": "not ok", "…": "...", "→": "->", "·": "-", "├": "|", "└": "|", "│": "|", "─": "-"}


def _known_signs(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def any_output() -> None:
    """Write to whatever the standard streams are: closed ones swallow it, unknown signs become ASCII."""
    codecs.register_error("antiphon", _known_signs)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif hasattr(stream, "reconfigure") and stream.errors in ("strict", "surrogateescape"):  # as in the C locale
            stream.reconfigure(errors="antiphon")


def report(error: errors.AntiphonError, as_json: bool) -> None:
    """Say what happened and what to do next; a document takes one line, as some commands print one per line."""
    if as_json:
        ui.print_json({"error": error.code, "message": error.message, "hint": error.hint}, indent=False)
        return
    notice = "\n" in error.message  # a multi-line notice, such as the side effects to review
    print(error.message if notice else f"antiphon: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"          {error.hint}", file=sys.stderr)


def interrupted(as_json: bool, hint: str = "", *, what: str = "interrupted") -> int:
    """Say so, and how to go on; the exit code."""
    report(errors.AntiphonError(what, hint=hint, code="interrupted"), as_json)
    return 130


_MAKES_STORE = ("run", "exec", "import", "serve", "proxy", "mcp", "replay", "test", "matrix")
_STORE_VARIABLES = ("ANTIPHON_STORE", "ANTIPHON_STORE_URL", "ANTIPHON_STORE_CLAIMS", "ANTIPHON_STORE_LOG")


@contextmanager
def _named_store(arguments: argparse.Namespace, *, makes: bool) -> Iterator[None]:
    """``--store`` wins over the configuration, here and in the processes that the command starts."""
    named = getattr(arguments, "store", None)
    if named is None:
        yield
        return
    if ":" not in named or os.path.exists(named):  # noqa: PTH110 - as the user wrote it
        path = Path(named).absolute()
        if path.is_dir():
            path /= "antiphon.db"
        if not makes and not path.is_file():
            raise errors.NotFound(f"There is no store at {path}.", hint="Name a SQLite file, a state folder or a URL.")
        named = f"sqlite:///{path}"
    else:
        from antiphon.config.wiring import open_store

        open_store(named, setting="--store")  # so that an error names the option
    before = {name: os.environ.pop(name, None) for name in _STORE_VARIABLES}
    os.environ.update(dict.fromkeys(("ANTIPHON_STORE", "ANTIPHON_STORE_CLAIMS", "ANTIPHON_STORE_LOG"), named))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def run_server(server: Any, tell: Callable[[str], None]) -> bool:
    """Run a server until a signal ends it; *tell* hears its address once clients can connect. Whether it had started.

    *server* has a ``config``, ``run(sockets)`` and ``started``, as those of uvicorn have.
    """
    host: str = server.config.host
    sockets = _listening(host, server.config.port)
    try:
        port = sockets[0].getsockname()[1]
        tell(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        sys.stderr.flush()
        server.run(sockets)
    except KeyboardInterrupt:
        return True
    except SystemExit:  # the server has already reported why
        return False
    finally:
        for one in sockets:
            one.close()
    return bool(server.started)


def _listening(host: str, port: int) -> list[Any]:
    """Sockets at all addresses of *host*, with the same port; clients that connect wait until they are served."""
    import socket

    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise _no_address(host, error) from None
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    for family, _, _, _, address in found:
        try:
            sockets.append(socket.create_server((address[0], port, *address[2:]), family=family))
            port = sockets[0].getsockname()[1]
        except OSError as error:
            refused = error
            if error.errno not in _NO_FAMILY:
                break
    if refused is None or (sockets and refused.errno in _NO_FAMILY):
        return sockets
    for one in sockets:
        one.close()
    if refused.errno in _NO_FAMILY:
        raise _no_address(host, refused)
    why = "is in use" if refused.errno == errno.EADDRINUSE else f"cannot be used: {refused.strerror}"
    raise errors.InvalidInput(f"Port {port} of {host} {why}.", hint="Choose another: --port N")


_NO_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""What addresses say whose family is switched off; ``localhost`` has some of each."""


def _no_address(host: str, error: OSError) -> errors.InvalidInput:
    text = f"{host} is not an address of this machine: {error.strerror}."
    return errors.InvalidInput(text, hint="Choose another: --host ADDRESS")


def ended_with(code: int) -> str:
    """How a process ended, in words."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


@contextmanager
def application(arguments: argparse.Namespace, *, temporary: bool = False) -> Iterator[Any]:
    """The current application object, made from ``--config`` and ``--store`` where the command has them.

    A *temporary* one has a store that is gone afterwards.
    """
    from antiphon.ops.app import Antiphon, current, using

    config = getattr(arguments, "config", None)
    if config is None and getattr(arguments, "store", None) is None and not temporary:
        yield current()
        return
    app = Antiphon(config, store="memory:" if temporary else None)
    with using(app):
        yield app


def _number(kind: Callable[[str], T], low: float, high: float, meaning: str) -> Callable[[str], T]:
    def parse(text: str) -> T:
        try:
            value = kind(text)
            if low <= value <= high:  # type: ignore[operator]
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text} is not {meaning}")

    return parse


non_negative_int = _number(int, 0, 2**63, "a whole number from 0")
positive_int = _number(int, 1, 2**63, "a whole number from 1")
non_negative_number = _number(float, 0, 1e12, "a number from 0")
ratio = _number(float, 0, 1, "between 0 and 1")


def ask(question: str) -> None:
    """Go on only if a person says so."""
    hint = "Answer at a terminal, or give --yes."
    if not sys.stdin.isatty():
        raise errors.InvalidInput(f"{question} There is no terminal to ask at, so nothing was changed.", hint=hint)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise errors.InvalidInput("Nothing was changed.")


def prompt_in(file: str) -> str:
    """The text of a prompt that is given as a file."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise errors.InvalidInput(f"The prompt {file} cannot be read: {error.strerror}.", path="prompt") from None
    except UnicodeDecodeError as error:
        text = f"The prompt {file} is not UTF-8 text: byte {error.start + 1} is invalid."
        raise errors.InvalidInput(text, hint="Save it as UTF-8.", path="prompt") from None


def none_found(app: Any, named: str | None, what: str, state: str, has: Callable[[Any], Any]) -> str:
    """That a tenant, *named* or not, has nothing to list, where it was looked for, and which tenants have some."""
    from antiphon.ops.admin import tenants_of

    _, *others = tenants_of(app)
    others = [tenant for tenant in others if has(app.for_tenant(tenant))]
    whose = f" of tenant {app.tenant}" if others or named or app.tenant != "default" else ""
    more = f" These tenants have some (--tenant): {', '.join(others)}." if others else ""
    return ui.safe(f"No {what}{whose}{state}. Looked in {app.store.url} (--store names another).{more}")


def check_run(arguments: argparse.Namespace) -> None:
    """Refuse a run id together with ``--latest``."""
    if arguments.run and arguments.latest:
        raise errors.InvalidInput("Give a run id or --latest, not both.")
