"""What a Redis that someone else runs promises about jobs it has acknowledged."""

from typing import Final

from redis.exceptions import NoPermissionError, ResponseError

from videoserve.broker.calls import Calls

OLDEST: Final = (6, 2)


class DurabilityCalls(Calls):
    async def weaknesses(self) -> list[str]:
        """Sentences on how this server may lose jobs or fail; empty for one that keeps every acknowledged job."""
        short = self._link.short
        version = str((await self._link.patiently(lambda: short.info("server")))["redis_version"])
        found = []
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            found.append(f"The Redis server is version {version}; the broker needs {OLDEST[0]}.{OLDEST[1]} or later.")
        try:
            told = await self._link.patiently(lambda: short.config_get("*"))
        except (NoPermissionError, ResponseError):
            return [*found, "The Redis server does not tell its settings, so whether it keeps jobs is not known."]
        if told["appendonly"] != "yes":
            found.append("The Redis server has appendonly no: its crash loses jobs. Set appendonly yes.")
        elif told["appendfsync"] != "always":
            found.append(
                f"The Redis server has appendfsync {told['appendfsync']}: a power cut may lose the jobs of its last "
                "moments. Set appendfsync always."
            )
        if told["maxmemory-policy"] != "noeviction":
            found.append(
                f"The Redis server has maxmemory-policy {told['maxmemory-policy']}: it throws jobs away when its "
                "memory is full. Set noeviction."
            )
        return found
