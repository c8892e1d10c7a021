"""Request bodies read from the network: counted while they come, given up when they stop coming."""

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from videoserve.errors import ServeError

# What is read and thrown away of a body that is too large, so that its sender gets to read the answer.
DRAINED = 4


async def read_body(request: Request, *, limit: int, silence_s: float) -> bytes:
    """The whole body. Raises ServeError 413 beyond `limit` bytes and 408 after `silence_s` seconds without any."""
    announced = request.headers.get("content-length", "")
    too_large = announced.isdecimal() and int(announced) > limit
    if too_large and request.headers.get("expect", "").lower() == "100-continue":
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    stream = request.stream()
    try:
        while True:
            async with asyncio.timeout(silence_s):
                piece = await anext(stream, None)
            if piece is None:
                break
            size += len(piece)
            too_large = too_large or size > limit
            if too_large:
                pieces.clear()
                if size > DRAINED * limit:
                    break
            else:
                pieces.append(piece)
    except TimeoutError:
        raise ServeError(
            f"The request body stopped coming for {silence_s:g} seconds.", status=408, code="request_timeout"
        ) from None
    except ClientDisconnect:
        raise ServeError("The client went away before its request was complete.", code="client_disconnected") from None
    if too_large:
        raise _too_large(limit)
    return b"".join(pieces)


def _too_large(limit: int) -> ServeError:
    return ServeError(
        f"The request body is larger than {limit} bytes, the most allowed.", status=413, code="body_too_large"
    )
