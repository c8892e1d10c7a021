"""The cache that the settings name: what is kept between requests."""

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

from videoserve.config import Settings
from videoserve_cache.tiers import Limits, SharedCache
from videoserve_cache.trace.recorder import Recorder

GIB = 2**30


def open_cache(settings: Settings, *, serves: bool) -> SharedCache | None:
    """None where nothing is kept. `serves`: this process answers other nodes that ask for bytes.

    Without a secret no other node is told of this one, and none could open anything here. Raises ValueError, a
    sentence, when the trace cannot be gone on with.
    """
    if not settings.cache or settings.redis_url is None:
        return None
    folder, secret = settings.data / "cache", settings.cache_secret
    limits = Limits(
        memory_bytes=round(settings.cache_memory_gb * GIB),
        disk_bytes=round(settings.cache_disk_gb * GIB),
        device_bytes=round(settings.cache_device_gb * GIB),
    )
    told = {}
    if settings.cache_trace_mb:
        told["on_event"] = Recorder(folder / "trace.jsonl", limit=round(settings.cache_trace_mb * 1e6)).on_event
    return SharedCache.open(
        settings.redis_url,
        folder,
        node=node_name(folder),
        limits=limits,
        secret=secrets.token_bytes(32) if secret is None else secret.encode(),
        address=settings.cache_address if serves and secret is not None else None,
        **told,
    )


def node_name(folder: Path) -> str:
    """One a folder, so that containers which share it are one node, and two servers on a machine are two."""
    folder.mkdir(parents=True, exist_ok=True)
    name, made = folder / "node", f"{socket.gethostname()}-{secrets.token_hex(4)}"
    if not name.exists():
        # Processes of several containers may have the same number.
        mine = folder / f"node.{secrets.token_hex(8)}"
        mine.write_text(made)
        # Whoever is first decides.
        with suppress(FileExistsError):
            os.link(mine, name)
        mine.unlink()
    return name.read_text()
