"""Request bodies read from the network: counted while they come, given up when they stop coming."""

import asyncio
import time
from collections.abc import AsyncIterator

from fastapi import Request
from starlette.requests import ClientDisconnect

from videoserve.errors import ServeError

# What is read and thrown away of a body that is too large, so that its sender gets to read the answer.
DRAINED = 4


async def read_body(request: Request, *, limit: int, silence_s: float) -> bytes:
    """The whole body. Raises ServeError 413 beyond `limit` bytes and 408 after `silence_s` seconds without any."""
    too_large = refuse_announced(request, limit)
    pieces: list[bytes] = []
    size = 0
    async for piece in arriving(request, silence_s):
        size += len(piece)
        too_large = too_large or size > limit
        if too_large:
            pieces.clear()
            if size > DRAINED * limit:
                break
        else:
            pieces.append(piece)
    if too_large:
        raise body_too_large(limit)
    return b"".join(pieces)


def refuse_announced(request: Request, limit: int) -> bool:
    """Whether the body is said to be longer than `limit`. Raises ServeError 413 where its sender waits for a word."""
    announced = request.headers.get("content-length", "")
    too_large = announced.isdecimal() and int(announced) > limit
    if too_large and request.headers.get("expect", "").lower() == "100-continue":
        raise body_too_large(limit)
    return too_large


async def arriving(request: Request, silence_s: float, slowest: float = 0.0) -> AsyncIterator[bytes]:
    """The pieces of the body as they come. Raises ServeError 408 after `silence_s` seconds without any, and for a body
    that comes more slowly than `slowest` bytes a second all in all; 400 when the client goes away."""
    stream = request.stream()
    began, size, slow = time.monotonic(), 0, False
    try:
        while True:
            left_s = began + silence_s + size / slowest - time.monotonic() if slowest else silence_s
            slow = left_s < silence_s
            async with asyncio.timeout(min(silence_s, left_s)):
                piece = await anext(stream, None)
            if piece is None:
                return
            size += len(piece)
            yield piece
    except TimeoutError:
        why = f"came at less than {slowest:g} bytes a second" if slow else f"stopped coming for {silence_s:g} seconds"
        raise ServeError(f"The request body {why}.", status=408, code="request_timeout") from None
    except ClientDisconnect:
        raise ServeError("The client went away before its request was complete.", code="client_disconnected") from None


def body_too_large(limit: int) -> ServeError:
    return ServeError(
        f"The request body is larger than {limit} bytes, the most allowed.", status=413, code="body_too_large"
    )
