"""The connection to Redis: every call is tried again while the server is away."""

import asyncio
import json
import math
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from videoserve.broker.scripts import Script, read_scripts
from videoserve.errors import FenceLost, ServeError

# BusyLoadingError (the server reads its log after a restart) is a ConnectionError.
AWAY: Final = (RedisConnectionError, RedisTimeoutError, OSError)
SHORT_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 0.25


class Link:
    """Two pools to one server: for short calls, and for reads that wait for news and hold their connection."""

    def __init__(self, url: str, retry_s: float):
        self._retry_s = retry_s
        self._scripts = read_scripts()
        self.short: Redis = _client(url, connections=32)
        self.waiting: Redis = _client(url, connections=4096)

    async def close(self) -> None:
        await self.short.aclose()
        await self.waiting.aclose()

    async def patiently(self, call: Callable[[], Awaitable[Any]], *, within_s: float = SHORT_S) -> Any:
        """The answer of `call`, which is made again with growing pauses for as long as the server is away.

        Any, because redis-py's types cannot tell that our answers are decoded text. Only for calls that may be
        applied twice. A server that is stopped rather than gone counts as away after `within_s` seconds. Raises
        ServeError 503 `retry_s` seconds after the first failure.
        """
        loop = asyncio.get_running_loop()
        end = math.inf
        pause = FIRST_PAUSE_S
        while True:
            try:
                # redis-py's own time limit is asyncio.wait_for, a task for each call, and up to Python 3.11 one that
                # swallows a cancellation that comes together with the answer.
                async with asyncio.timeout(within_s):
                    return await call()
            except AWAY as error:
                # Not from the beginning: a read that waits for news may have waited long before the server went.
                end = min(end, loop.time() + self._retry_s)
                if loop.time() + pause > end:
                    raise ServeError(
                        f"The job store did not answer for {self._retry_s:g} seconds.",
                        status=503,
                        code="store_unavailable",
                    ) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def transition(self, name: str, /, *, once: bool = True, **parameters: Any) -> dict[str, Any]:
        """Runs one script. `once`: a repetition after a lost connection gets the first answer.

        Raises FenceLost when the script says that the lease has passed on; other refusals are in answer["error"].
        """
        nonce = uuid.uuid4().hex if once else ""
        text = json.dumps({key: value for key, value in parameters.items() if value is not None})
        answer = json.loads(await self.patiently(lambda: self._run(self._scripts[name], nonce, text)))
        if answer.get("error") == "fence":
            raise FenceLost(f"The lease {parameters['fence']} of job {parameters['id']} has passed on.")
        return cast(dict[str, Any], answer)

    async def _run(self, script: Script, nonce: str, parameters: str) -> str:
        try:
            return cast(str, await self.short.evalsha(script.sha1, 0, nonce, parameters))
        except NoScriptError:
            # A server that restarted has forgotten its scripts; EVAL teaches it.
            return cast(str, await self.short.eval(script.text, 0, nonce, parameters))


def _client(url: str, *, connections: int) -> Redis:
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=5,
        protocol=2,
        decode_responses=True,
        socket_timeout=None,
        socket_connect_timeout=2.0,
        # Link.patiently is the one place that tries again.
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)
