"""Every failure as the same JSON: {"error": {message, type, param, code}}; never a server path or a stack trace."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from videoserve.errors import BadAdapter, InvalidField, ServeError
from videoserve.nearest import nearest
from videoserve.planning.limits import LIMITS

log = logging.getLogger("videoserve.api")

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
SHOWN = 80
# Fields that are often called otherwise, or looked for beside the one that they are part of.
MEANT = {"image": "input_reference", "weight": "scale", "verify": "cache"}
# Of a file whose every key is at fault; the message says how many there are.
KEYS_SHOWN = 1000


def answer(error: ServeError) -> JSONResponse:
    """The error as a response, with the headers that belong to its status."""
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in (408, 413):
        # The rest of the body is not read; another request cannot follow it.
        headers["Connection"] = "close"
    if hasattr(error, "retry_after"):
        headers["Retry-After"] = str(error.retry_after)
    elif error.status == 503:
        headers["Retry-After"] = "1"
    return JSONResponse(content(error), error.status, headers | getattr(error, "headers", {}))


def content(error: ServeError) -> dict[str, Any]:
    kind = TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    told: dict[str, Any] = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    if isinstance(error, BadAdapter):
        told["keys"] = list(error.keys[:KEYS_SHOWN])
    return {"error": told}


def invalid(error: ValidationError, fields: Mapping[str, Any]) -> ServeError:
    """The first complaint of pydantic as a sentence that names the field, its value and what is allowed."""
    return _complaint(error.errors(include_url=False, include_context=False)[0], [], fields)


def install(app: FastAPI) -> None:
    app.add_exception_handler(ServeError, _on_serve_error)
    app.add_exception_handler(RequestValidationError, _on_parameters)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_crash)


async def _on_serve_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServeError)
    return answer(error)


async def _on_parameters(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return answer(_complaint(error.errors()[0], ["path", "query", "header", "body"], {}))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    path, method = _shown(request.url.path), request.method
    message, code = {
        404: (f"There is nothing at {path}; GET /openapi.json lists what there is.", "not_found"),
        405: (f"{method} is not possible at {path}.", "method_not_allowed"),
    }.get(error.status_code, (str(error.detail), "invalid_request"))
    response = answer(ServeError(message, status=error.status_code, code=code))
    response.headers.update(error.headers or {})
    return response


async def _on_crash(request: Request, error: Exception) -> JSONResponse:
    return crash(request, error)


def crash(request: Request, error: Exception) -> JSONResponse:
    """The answer to a request that met a bug; the log gets the trace."""
    log.error("request failed", exc_info=error, extra={"method": request.method, "path": request.url.path})
    message = "The server failed on this request; its log says why."
    return answer(ServeError(message, status=500, code="internal_error"))


def _complaint(error: Mapping[str, Any], prefixes: Sequence[str], fields: Mapping[str, Any]) -> ServeError:
    place = [part for part in error["loc"] if part not in prefixes]
    name = str(place[0]) if place else "body"
    param = ".".join(map(str, place)) or "body"
    if error["type"] == "missing":
        return InvalidField(param, f"{param} is missing.")
    if error["type"] == "extra_forbidden":
        return unknown_field(param, fields)
    value = _shown(error["input"])
    if name in LIMITS and error["type"] != "value_error":
        kind = "a whole number" if "int" in error["type"] else "a number"
        return InvalidField(
            param, f"{name} is {value}; it must be {kind} from {LIMITS[name].low} to {LIMITS[name].high}."
        )
    reason = error["msg"].removeprefix("Value error, ").rstrip(".")
    return InvalidField(param, f"{param} is {value}, which cannot be used: {reason}.")


def unknown_field(name: str, known: Mapping[str, Any]) -> ServeError:
    """422 for a field that does not exist; `known` has the names of those that do as its keys."""
    meant = MEANT.get(name.rpartition(".")[2], "")
    instead = meant if meant in known or (meant and "." in name) else nearest(name, known)
    message = f"There is no field {_shown(name)}; the nearest one is {instead}."
    return ServeError(message, status=422, code="unknown_field", param=name[:SHOWN])


def unknown_parameter(name: str, known: Collection[str]) -> ServeError:
    """422 for a query parameter that the called route does not have; `known` are those it has."""
    instead = f"the nearest one is {nearest(name, known)}" if known else "this call has none"
    message = f"There is no query parameter {_shown(name)}; {instead}."
    return ServeError(message, status=422, code="unknown_parameter", param=name[:SHOWN])


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) and value.startswith("/") else "null" if value is None else repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
