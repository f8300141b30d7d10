"""Failures of models as frameworks raise them: recorded with what it takes to raise them again (R7)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from antiphon._recording import model
from antiphon._recording.boundary import error_payload
from antiphon.adapters._wire import error_headers
from antiphon.ports import Answer

_NOWHERE = "https://recorded.invalid"


def failure_payload(error: BaseException) -> dict[str, Any]:
    """An exception as it is recorded. One that stands for an HTTP answer keeps its status, body and headers."""
    found = error_payload(error)
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    for name, value in (("body", _body(error)), ("model", getattr(error, "model_name", None))):
        if value is not None and _is_json(value):
            found[name] = value
    if type(status) is int:
        found["status"] = status
        headers = getattr(getattr(error, "response", error), "headers", None)
        if headers:
            found["headers"] = error_headers(headers)
    return found


def _body(error: BaseException) -> Any:
    return getattr(error, "body", None) or getattr(error, "details", None)


def _is_json(value: Any) -> bool:
    try:
        return bool(orjson.loads(orjson.dumps(value)) == value)
    except TypeError:
        return False


def raised_by_model(answer: Answer) -> BaseException:
    """A recorded failure as the exception it was, if its class is loaded and can be made; else one that says what."""
    error = answer.error or {}
    package, _, name = str(error.get("class", "")).rpartition(".")
    kind = getattr(sys.modules.get(package), name, None)
    make = _MAKERS.get(package.partition(".")[0])
    if make is not None and isinstance(kind, type) and issubclass(kind, Exception):
        for attempt in make(kind, error):
            try:
                made = attempt()
            except Exception:  # noqa: S112 (a class of the package that is made otherwise)
                continue
            if str(made) == error.get("message"):
                return made
    return model.failure_of(answer)


Attempts = Iterator[Callable[[], Exception]]
"""Ways an exception may have been made; the one that says what was recorded is it."""


def _of_an_sdk(kind: Any, error: Mapping[str, Any]) -> Attempts:
    """``openai`` and ``anthropic``: an answer with a status, a connection that failed, or one that took too long."""
    httpx2, message, body = sys.modules["httpx2"], error.get("message"), error.get("body")
    request = httpx2.Request("POST", _NOWHERE)
    if "status" in error:
        content = None if body is None else orjson.dumps(body)
        response = httpx2.Response(error["status"], headers=error.get("headers"), content=content, request=request)
        yield lambda: kind(message, response=response, body=body)
    yield lambda: kind(message=message, request=request)
    yield lambda: kind(request=request)


def _of_pydantic_ai(kind: Any, error: Mapping[str, Any]) -> Attempts:
    """One with a status is an HTTP error and one of its category at once; the category is what its class is called."""
    known = {"model_name": error.get("model"), "body": error.get("body")}
    if "status" in error:
        http = sys.modules["pydantic_ai.exceptions"].ModelHTTPError
        known |= {"status_code": error["status"], "headers": error.get("headers")}
        yield lambda: http.for_category(None if kind is http else kind, **known)
        yield lambda: http(**known)
    yield lambda: kind(model_name=error.get("model"), message=error.get("message"))


def _of_google(kind: Any, error: Mapping[str, Any]) -> Attempts:
    yield lambda: kind(error.get("status"), error.get("body"))


_MAKERS: dict[str, Callable[[Any, Mapping[str, Any]], Attempts]] = {
    "openai": _of_an_sdk,
    "anthropic": _of_an_sdk,
    "pydantic_ai": _of_pydantic_ai,
    "google": _of_google,
}
