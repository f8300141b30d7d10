"""A closure per call behind one registered function.

A caller supplies a closure per call, but the gateway needs a registered function. So one function is registered per
tool name, and a context variable passes the closure to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Body = Callable[[dict[str, Any]], Any]

_pending: ContextVar[PendingCall] = ContextVar("antiphon_pending_call")


class PendingCall:
    """A call being made: its body, and the exception that it raised, so that the caller sees the original."""

    __slots__ = ("body", "error")
    noted: type[BaseException] = Exception
    """The exceptions that are noted."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.error: BaseException | None = None


@contextmanager
def making(call: PendingCall) -> Iterator[None]:
    """Pass *call* to the registered function."""
    token = _pending.set(call)
    try:
        yield
    finally:
        _pending.reset(token)


def run(**params: Any) -> Any:
    """The function to register with a gateway."""
    call = _pending.get()
    try:
        return call.body(params)
    except call.noted as error:
        call.error = error
        raise


async def run_async(**params: Any) -> Any:
    """The function to register with an asynchronous gateway."""
    call = _pending.get()
    try:
        return await call.body(params)
    except call.noted as error:
        call.error = error
        raise
