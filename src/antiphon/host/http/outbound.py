"""The one way out of the host: a POST to a model provider or a subscriber, without retries, redirects or proxies."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.errors import missing_extra

_LARGEST = 16 * 1024 * 1024


async def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> tuple[int, bytes]:
    """Status and body of the answer; a transport failure is an ``OSError``."""
    try:
        import httpx
    except ImportError:
        raise missing_extra("httpx", "httpx", "A model provider or webhook of the host") from None
    pieces: list[bytes] = []
    size = 0
    try:
        async with (
            httpx.AsyncClient(timeout=seconds, follow_redirects=False, trust_env=False) as client,
            client.stream("POST", url, content=body, headers=dict(headers)) as answer,
        ):
            async for piece in answer.aiter_bytes():
                size += len(piece)
                if size > _LARGEST:
                    raise ConnectionError("the answer is too large")
                pieces.append(piece)
            return answer.status_code, b"".join(pieces)
    except httpx.HTTPError as error:
        raise ConnectionError(type(error).__name__) from error
