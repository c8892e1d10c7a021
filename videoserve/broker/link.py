"""The connection to Redis: every call is tried again while the server is away or refuses."""

import asyncio
import json
import math
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from videoserve.broker.scripts import read_scripts
from videoserve.errors import FenceLost, ServeError
from videoserve_cache.index.script import Script

# BusyLoadingError (the server reads its log after a restart) is a ConnectionError.
AWAY: Final = (RedisConnectionError, RedisTimeoutError, OSError)
# How a server that is there says that it does nothing for anybody now: its memory or disk is full, it became a replica.
REFUSALS: Final = ("UNBLOCKED", "MISCONF", "NOREPLICAS")
# Redis 6 wraps what it tells a script into a sentence, so that redis-py does not know it either.
REFUSED_A_SCRIPT: Final = re.compile(r"@user_script: \d+: -(OOM|READONLY|MISCONF|NOREPLICAS) ")
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
        """The answer of `call`, which is made again with growing pauses for as long as the server is away or refuses.

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
            except (*AWAY, ResponseError) as error:
                refused = isinstance(error, ResponseError)
                if refused and not _refuses_all(error):
                    raise
                # Not from the beginning: a read that waits for news may have waited long before the server went.
                end = min(end, loop.time() + self._retry_s)
                if loop.time() + pause > end:
                    did = "is full or read-only: it refused" if refused else "did not answer"
                    raise ServeError(
                        f"The job store {did} for {self._retry_s:g} seconds.", status=503, code="store_unavailable"
                    ) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def transition(self, name: str, /, *, once: bool = True, call: str = "", **parameters: Any) -> dict[str, Any]:
        """Runs one script. `once`: a repetition after a lost connection gets the first answer.

        `call` names what the caller may repeat by itself, after this has given up; the script gets it too.
        Raises FenceLost when the script says that the lease has passed on; other refusals are in answer["error"].
        """
        nonce = call or (uuid.uuid4().hex if once else "")
        if call:
            parameters["call"] = call
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


def _refuses_all(error: Exception) -> bool:
    if isinstance(error, (OutOfMemoryError, ReadOnlyError)):
        return True
    return str(error).startswith(REFUSALS) or REFUSED_A_SCRIPT.search(str(error)) is not None


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
