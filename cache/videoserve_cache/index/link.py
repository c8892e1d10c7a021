"""The connection to Redis: a call that is not answered in time is given up, and none is tried again."""

import json
from typing import Any, Final, cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from videoserve_cache.index.breaker import Breaker
from videoserve_cache.index.script import Script
from videoserve_cache.index.scripts import read_scripts

# BusyLoadingError (the server reads its log after a restart) is a ConnectionError.
AWAY: Final = (RedisConnectionError, RedisTimeoutError, OSError)
# It answers, but takes no writes: out of memory, a replica, or its disk is full. Redis 6 tells of it in the text only.
REFUSALS: Final = (OutOfMemoryError, ReadOnlyError)
REFUSED: Final = ("OOM", "READONLY", "MISCONF")
# A store that syncs each write may take long for one on a disk that others use.
WRITE_S: Final = 5.0


class Away(Exception):
    """Redis does not answer, did not a moment ago, or takes no writes."""


class Link:
    """Two pools to one server, one for lookups, which wait `patience_s` at most, and one for everything else."""

    def __init__(self, url: str, patience_s: float):
        self._scripts = read_scripts()
        self._lookups = _client(url, patience_s)
        self._others = _client(url, WRITE_S)
        self.breaker = Breaker()

    def close(self) -> None:
        self._lookups.close()
        self._others.close()

    def call(self, name: str, /, *, quick: bool = False, **parameters: Any) -> dict[str, Any]:
        """The answer of one script. Raises Away, at once while the breaker is open."""
        if self.breaker.is_open:
            raise Away
        client = self._lookups if quick else self._others
        text = json.dumps({key: value for key, value in parameters.items() if value is not None})
        try:
            return cast(dict[str, Any], json.loads(_run(client, self._scripts[name], text)))
        except AWAY as error:
            self.breaker.trip()
            raise Away from error
        except ResponseError as error:
            if isinstance(error, REFUSALS) or any(word in str(error) for word in REFUSED):
                raise Away from error
            raise

    def greet(self) -> None:
        """Connects and teaches the scripts, so that no lookup has to. Trips the breaker when Redis is away."""
        try:
            for script in self._scripts.values():
                self._others.script_load(script.text)
            self._lookups.ping()
        except AWAY:
            self.breaker.trip()

    def answers(self) -> bool:
        """Asks Redis whatever the breaker says."""
        try:
            return bool(self._others.ping())
        except AWAY:
            return False


def _run(client: Redis, script: Script, parameters: str) -> str:
    try:
        return cast(str, client.evalsha(script.sha1, 0, parameters))
    except NoScriptError:
        # A server that restarted has forgotten its scripts; EVAL teaches it.
        return cast(str, client.eval(script.text, 0, parameters))


def _client(url: str, patience_s: float) -> Redis:
    return Redis.from_url(
        url,
        protocol=2,
        decode_responses=True,
        socket_timeout=patience_s,
        socket_connect_timeout=patience_s,
        retry=Retry(NoBackoff(), 0),
    )
