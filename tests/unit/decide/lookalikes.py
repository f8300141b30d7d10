"""Exceptions of packages that are not installed here, built with the same module names, bases and attributes."""

from __future__ import annotations

from typing import Any


def lookalike(module: str, name: str, *bases: type[BaseException], **attributes: Any) -> type[Exception]:
    """A class that says it lives in *module*."""
    made = type(name, bases or (Exception,), {"__module__": module, **attributes})
    assert issubclass(made, Exception)
    return made


_B = "botocore.exceptions"
BotoCoreError = lookalike(_B, "BotoCoreError")
HTTPClientError = lookalike(_B, "HTTPClientError", BotoCoreError)
BotoConnectionError = lookalike(_B, "ConnectionError", BotoCoreError)
EndpointConnectionError = lookalike(_B, "EndpointConnectionError", BotoConnectionError)
BotoConnectTimeout = lookalike(_B, "ConnectTimeoutError", BotoConnectionError)
BotoReadTimeout = lookalike(_B, "ReadTimeoutError", HTTPClientError)
BotoConnectionClosed = lookalike(_B, "ConnectionClosedError", HTTPClientError)
ParamValidationError = lookalike(_B, "ParamValidationError", BotoCoreError)
NoCredentialsError = lookalike(_B, "NoCredentialsError", BotoCoreError)


def client_error(code: str, status: int, **headers: str) -> Exception:
    """``botocore.exceptions.ClientError`` as the service answers it."""

    def init(self: Any, response: dict[str, Any], operation: str) -> None:
        Exception.__init__(self, f"An error occurred ({response['Error']['Code']}) when calling {operation}")
        self.response = response

    made = lookalike(_B, "ClientError", Exception, __init__=init)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return made({"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": metadata}, "PutItem")


_A = "aiohttp.client_exceptions"
AioClientError = lookalike(_A, "ClientError")
AioConnectionError = lookalike(_A, "ClientConnectionError", AioClientError)
AioOSError = lookalike(_A, "ClientOSError", AioConnectionError, OSError)
AioConnectorError = lookalike(_A, "ClientConnectorError", AioOSError)
AioDNSError = lookalike(_A, "ClientConnectorDNSError", AioConnectorError)
AioCertificateError = lookalike(_A, "ClientConnectorCertificateError", AioConnectorError)
AioServerDisconnected = lookalike(_A, "ServerDisconnectedError", AioConnectionError)
AioServerTimeout = lookalike(_A, "ServerTimeoutError", AioConnectionError, TimeoutError)
AioConnectTimeout = lookalike(_A, "ConnectionTimeoutError", AioServerTimeout)
AioPayloadError = lookalike(_A, "ClientPayloadError", AioClientError)
AioResponseError = lookalike(_A, "ClientResponseError", AioClientError)
AioContentTypeError = lookalike(_A, "ContentTypeError", AioResponseError)


def aio_response_error(status: int, kind: type[Exception] = AioResponseError, **headers: str) -> Exception:
    error = kind(f"{status}, message='no'")
    error.status = status  # type: ignore[attr-defined]
    error.headers = {name.replace("_", "-").title(): value for name, value in headers.items()}  # type: ignore[attr-defined]
    return error


class _Code:
    def __init__(self, name: str) -> None:
        self.name = name


def rpc_error(name: str) -> Exception:
    """``grpc.aio.AioRpcError``: the code is behind a method."""
    base = lookalike("grpc", "RpcError")
    made = lookalike("grpc.aio._call", "AioRpcError", base, code=lambda self: _Code(name))
    return made(f"StatusCode.{name}")
