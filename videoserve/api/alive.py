"""What a client hears of a stream while nothing happens: proxies drop streams that are silent for long."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

ALIVE_S: Final = 15.0
COMMENT: Final = b": alive\n\n"


async def kept_alive(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces, and a comment whenever there was none for a while."""
    upcoming = asyncio.ensure_future(anext(pieces, None))
    try:
        while True:
            done, _ = await asyncio.wait({upcoming}, timeout=ALIVE_S)
            if not done:
                yield COMMENT
                continue
            piece = upcoming.result()
            if piece is None:
                return
            yield piece
            upcoming = asyncio.ensure_future(anext(pieces, None))
    finally:
        upcoming.cancel()
        await asyncio.gather(upcoming, return_exceptions=True)
