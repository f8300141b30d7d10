"""Exceptions as the real packages raise them."""

from __future__ import annotations

import socket
import urllib.error
from collections.abc import Callable
from email.message import Message
from typing import Any

import anthropic
import google.genai.errors
import httpx
import httpx2
import msgspec
import openai
import pydantic
import requests

from antiphon.decide.classify import Failure
from tests.unit.decide import lookalikes as like

Code = tuple[str, str, bool, str]


def wrap(outer: BaseException, inner: BaseException) -> BaseException:
    """*outer* as raised while *inner* was handled."""
    outer.__context__ = inner
    return outer


def caused(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


def h2(status: int, body: Any = None, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = httpx2.Request("POST", "http://vendor.test/v1")
    return httpx2.Response(status, headers=named, json=body, request=request)


def http_error(status: int, body: Any = None, **headers: str) -> httpx.HTTPStatusError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = httpx.Request("POST", "http://vendor.test/v1")
    response = httpx.Response(status, headers=named, json=body, request=request)
    return httpx.HTTPStatusError(f"status {status}", request=request, response=response)


def openai_error(status: int, body: dict[str, Any] | None = None, **headers: str) -> Exception:
    client = openai.OpenAI(api_key="none", max_retries=0)
    return client._make_status_error("no", body=body, response=h2(status, {"error": body}, **headers))


def anthropic_error(status: int, body: dict[str, Any] | None = None, **headers: str) -> Exception:
    client = anthropic.Anthropic(api_key="none", max_retries=0)
    return client._make_status_error("no", body=body, response=h2(status, body, **headers))


def gemini_error(status: int, details: list[dict[str, Any]] | None = None) -> Exception:
    body = {"error": {"code": status, "message": "no", "status": "RESOURCE_EXHAUSTED", "details": details or []}}
    return google.genai.errors.ClientError(status, body, None)


def requests_http_error(status: int, **headers: str) -> Exception:
    response = requests.Response()
    response.status_code = status
    response.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return requests.HTTPError(f"{status}", response=response)


def url_http_error(status: int, **headers: str) -> Exception:
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return urllib.error.HTTPError("http://vendor.test", status, "no", message, None)


def pydantic_error() -> Exception:
    try:
        pydantic.TypeAdapter(int).validate_python("x")
    except pydantic.ValidationError as error:
        return error
    raise AssertionError


def msgspec_error() -> Exception:
    try:
        msgspec.convert("x", int)
    except msgspec.ValidationError as error:
        return error
    raise AssertionError


REFUSED = ConnectionRefusedError(111, "Connection refused")
UNKNOWN_HOST = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
REQUEST = httpx2.Request("POST", "http://vendor.test/v1")

STATUS_SOURCES: dict[str, Callable[..., BaseException]] = {
    "httpx": http_error,
    "openai": openai_error,
    "anthropic": anthropic_error,
    "requests": requests_http_error,
    "urllib": url_http_error,
    "aiohttp": like.aio_response_error,
    "botocore": lambda status, **headers: like.client_error("Whatever", status, **headers),
}


def code_of(failure: Failure) -> Code:
    return failure.code, failure.kind, failure.retriable, failure.phase


def name_of(case: Any) -> str:
    return f"{type(case).__module__.partition('.')[0]}.{type(case).__name__}" if isinstance(case, BaseException) else ""
