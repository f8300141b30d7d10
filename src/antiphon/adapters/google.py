"""Google GenAI: records and replays the model calls of a client.

>>> from google import genai                                                    # doctest: +SKIP
>>> client = genai.Client(api_key="…", http_options=protect())
"""

from __future__ import annotations

from typing import Any

from antiphon.adapters._requirements import require
from antiphon.adapters._retries import DEFAULT_RETRIES
from antiphon.adapters.httpx import client_options


def protect(options: Any = None) -> Any:
    """``HttpOptions`` (the given ones, or new) with recording HTTP clients, for ``genai.Client(http_options=…)``.

    The SDK only takes HTTP clients through its options, so this protects the options rather than the client.
    """
    given = {} if options is None else options.model_dump(exclude_unset=True)
    return http_options(**given)


def http_options(**given: Any) -> Any:
    """``google.genai.types.HttpOptions`` with recording HTTP clients; takes the keywords of ``HttpOptions``.

    A failed request is retried up to twice. If ``retry_options`` is given, the SDK retries instead, so that only one
    layer retries.
    """
    genai = require("google")
    httpx2 = require("httpx2")
    retries = 0 if given.get("retry_options") is not None else DEFAULT_RETRIES
    clients = {
        "httpx_client": httpx2.Client(follow_redirects=True, **client_options(module=httpx2, retries=retries)),
        "httpx_async_client": httpx2.AsyncClient(
            follow_redirects=True, **client_options(module=httpx2, asynchronous=True, retries=retries)
        ),
    }
    return genai.types.HttpOptions(**{**clients, **given})
