"""A request body, multipart or JSON, as one dict of fields in the shape of the JSON body."""

import asyncio
import re
from typing import Any

from fastapi import Request
from pydantic_core import from_json

from videoserve.api.body import read_body
from videoserve.api.multipart import Upload, parse_multipart
from videoserve.config import Settings
from videoserve.errors import InvalidField, ServeError

# Fields in which an empty form value is a value; elsewhere it is what browsers send for an input left alone.
TEXTS = ("prompt", "negative_prompt")
DEPTH_MAX = 4

_KEY = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_STEP = re.compile(r"\[([^\[\]]*)\]")


async def read_fields(request: Request, settings: Settings) -> dict[str, Any]:
    """The fields of the body. File parts are Uploads, all else is as JSON has it, form values being strings.

    Raises ServeError 400 for a body that cannot be parsed, 408, 413, 415 for another Content-Type, 422 for form
    fields that contradict each other.
    """
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in ("multipart/form-data", "application/json"):
        raise ServeError(
            f"The Content-Type is {kind[:80]!r}; it must be multipart/form-data or application/json.",
            status=415,
            code="unsupported_media_type",
        )
    body = await read_body(request, limit=settings.body_limit, silence_s=settings.read_timeout_s)
    if kind == "application/json":
        return await asyncio.to_thread(parse_json, body)
    return await asyncio.to_thread(parse_form, body, content_type)


async def read_json(request: Request, settings: Settings) -> dict[str, Any]:
    """The fields of a body that can only be JSON. Raises as `read_fields` does."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ServeError(
            f"The Content-Type is {kind[:80]!r}; it must be application/json.",
            status=415,
            code="unsupported_media_type",
        )
    body = await read_body(request, limit=settings.body_limit, silence_s=settings.read_timeout_s)
    return await asyncio.to_thread(parse_json, body)


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises ServeError 400 for anything else; NaN and halves of surrogate pairs are no JSON."""
    try:
        fields = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ServeError(f"The body is not JSON: {error}.", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise ServeError('The body is JSON but not an object: it must be like {"prompt": …}.', code="invalid_json")
    return fields


def parse_form(body: bytes, content_type: str) -> dict[str, Any]:
    """The fields of a multipart form. `a[b]`, `a[]`, `a[0][b]` and `a[][b]` make objects and lists.

    The official client sends a list of objects as columns: all of `lora[][id]`, then all of `lora[][scale]`. That is
    only clear when every object has the same keys; other lists are a 422.
    """
    entries: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    for key, value in parse_multipart(body, content_type):
        match = _KEY.fullmatch(key)
        steps = tuple(_STEP.findall(match[2])) if match else ()
        if match is None or len(steps) > DEPTH_MAX:
            raise InvalidField(key[:80], f"The form field {key[:80]!r} is not a name like a, a[b], a[] or a[][b].")
        if value != "" or match[1] in TEXTS:
            entries.setdefault(match[1], []).append((steps, value))
    return {name: _nest(name, found) for name, found in entries.items()}


def _nest(name: str, entries: list[tuple[tuple[str, ...], Any]]) -> Any:
    steps = [path[0] if path else None for path, _ in entries]
    if steps == [None]:
        return entries[0][1]
    if None in steps or ("" in steps and len(set(steps)) > 1):
        if set(steps) == {None}:
            raise InvalidField(name, _given_often(name, entries))
        raise InvalidField(name, f"{name} is given as {_shapes(name, entries)} at once; one of them is right.")
    if steps[0] == "":
        return _list(name, [(path[1:], value) for path, value in entries])
    groups: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    for path, value in entries:
        groups.setdefault(path[0], []).append((path[1:], value))
    if all(step.isascii() and step.isdecimal() and len(step) < 4 for step in groups):
        return [_nest(f"{name}[{step}]", groups[step]) for step in sorted(groups, key=int)]
    return {step: _nest(f"{name}[{step}]", found) for step, found in groups.items()}


def _list(name: str, entries: list[tuple[tuple[str, ...], Any]]) -> list[Any]:
    columns: dict[tuple[str, ...], list[Any]] = {}
    for path, value in entries:
        columns.setdefault(path, []).append(value)
    if len({len(column) for column in columns.values()}) > 1:
        counts = ", ".join(f"{len(column)} of {_spelled(name, ('', *path))}" for path, column in columns.items())
        raise InvalidField(name, f"{name} has {counts}: it is not clear which belong together. Send it as JSON text.")
    rows = [list(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [_nest(f"{name}[]", row) for row in rows]


def _given_often(name: str, entries: list[tuple[tuple[str, ...], Any]]) -> str:
    what = "two pictures" if isinstance(entries[0][1], Upload) and len(entries) == 2 else f"{len(entries)} values"
    return f"{name} has {what}; it takes one."


def _shapes(name: str, entries: list[tuple[tuple[str, ...], Any]]) -> str:
    return " and ".join(dict.fromkeys(_spelled(name, path) for path, _ in entries))


def _spelled(name: str, path: tuple[str, ...]) -> str:
    return name + "".join(f"[{step}]" for step in path)
