"""The form of an uploaded adapter, taken apart while it comes: its files go to the disk, never into memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import Request
from python_multipart.exceptions import FormParserError

from videoserve.api.adapter_parts import AdapterParts, refused
from videoserve.api.body import DRAINED, arriving, body_too_large, refuse_announced
from videoserve.api.multipart import broken
from videoserve.config import Settings
from videoserve.errors import ServeError
from videoserve_lora.store import AdapterStore

# Parsed and written at once, in a thread.
PIECE: Final = 1 << 20
# Beside the files: boundaries, headers and texts.
FORM_MAX: Final = 1 << 20
# Bytes a second; who sends less holds a connection and a file for nothing.
SLOWEST: Final = 16_384


@asynccontextmanager
async def receive(request: Request, store: AdapterStore, settings: Settings) -> AsyncIterator[AdapterParts]:
    """The form, complete; its files are there as long as the context.

    Raises ServeError 400, 408, 413, 415, 422 or 507, once all that may still come has come, so that the client gets to
    read why.
    """
    content_type = refuse_kind(request)
    parts = AdapterParts(store, content_type, settings)
    try:
        await _read(request, parts, settings)
        yield parts
    finally:
        parts.close()
        for received in parts.files.values():
            received.place.unlink(missing_ok=True)


def refuse_kind(request: Request) -> str:
    """The Content-Type. Raises ServeError 415 for another than a form, and for a body that is encoded."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise refused(f"The Content-Encoding is {encoding[:40]!r}; adapters are taken as they are, without any.")
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise refused(f"The Content-Type is {kind[:80]!r}; it must be multipart/form-data.")
    return content_type


async def _read(request: Request, parts: AdapterParts, settings: Settings) -> None:
    most = settings.adapter_bytes + FORM_MAX
    refusal = body_too_large(most) if refuse_announced(request, most) else None
    waiting, size = bytearray(), 0
    async for piece in arriving(request, settings.read_timeout_s, SLOWEST):
        size += len(piece)
        if size > DRAINED * most:
            break
        if size > most and refusal is None:
            refusal = body_too_large(most)
        if refusal is None:
            waiting += piece
            if len(waiting) >= PIECE:
                refusal = await _feed(parts, waiting)
    if refusal is None:
        refusal = await _feed(parts, waiting, last=True)
    if refusal is not None:
        raise refusal


async def _feed(parts: AdapterParts, waiting: bytearray, *, last: bool = False) -> ServeError | None:
    """Why the rest need not be read, if so; it still has to come before the client reads an answer."""
    try:
        await asyncio.to_thread(parts.feed, bytes(waiting), last)
    except ServeError as refusal:
        return refusal
    except FormParserError as error:
        return broken(str(error).rstrip("."))
    finally:
        waiting.clear()
    return None
