"""What is kept between requests, processes and machines: the one door to index and tiers."""

import os
import re
import threading
from pathlib import Path
from typing import Any, Literal, Self

from videoserve_cache.index.key import Class, Key
from videoserve_cache.tiers.device import DeviceTier
from videoserve_cache.tiers.hit import Hit
from videoserve_cache.tiers.limits import Limits
from videoserve_cache.tiers.node import Node, OnEvent, Setup
from videoserve_cache.tiers.peer import opens
from videoserve_cache.tiers.reader import Reader
from videoserve_cache.tiers.upkeep import Upkeep
from videoserve_cache.tiers.writer import Writer

_DIGEST = re.compile(r"[0-9a-f]{64}")


class SharedCache:
    """Thread-safe; a fork opens its own connections at its first call.

    get and put never raise for a Redis that is away, a full disk, a damaged file or a dead peer: they miss, or keep
    nothing. pin, drop, forget, prefixes, entries and stats raise Away.
    """

    def __init__(self, setup: Setup):
        self._setup = setup
        self._lock = threading.Lock()
        self._opened: _Opened | None = None

    @classmethod
    def open(
        cls,
        redis_url: str,
        folder: Path,
        *,
        node: str,
        limits: Limits,
        secret: bytes,
        address: str | None,
        on_event: OnEvent = lambda what, key, tier, size, seconds: None,
    ) -> Self:
        """Starts a thread that beats for the node. Redis may be away.

        folder   of the node, on its disk; all its processes name the same one.
        node     what the machine is called in the index: no other has this name.
        secret   that of all nodes, for blobs between them.
        address  where peers reach this node's /v1/cache/blobs, http://host:port; None when this process serves none.
        on_event (what, key or None, tier, bytes, seconds), called on the thread it happens on. what: hit, miss, put,
                 evict, promote, corrupt, full, rejoined. seconds: what a hit or put entry took to compute.
        """
        if not node or any(letter.isspace() for letter in node):
            raise ValueError(f"The name of a cache node, {node!r}, must have letters and no spaces.")
        setup = Setup(
            redis_url=redis_url, folder=folder, node=node, limits=limits, secret=secret, address=address,
            on_event=on_event,
        )  # fmt: skip
        cache = cls(setup)
        assert cache._here
        return cache

    def close(self) -> None:
        """Tells what was used since the last beat. Blobs that were handed out stay right."""
        if self._opened is not None and self._opened.node.pid == os.getpid():
            try:
                self._opened.upkeep.stop()
            finally:
                self._opened.node.close()
        self._opened = None

    @property
    def device(self) -> DeviceTier:
        """Objects of this process by digest: `get(digest)`, `put(digest, thing, size)`."""
        return self._here.node.device

    @property
    def drops(self) -> int:
        """How often this process heard that entries were dropped by hand: what it made of any is to go."""
        return self._here.node.drops

    def get(self, key: Key) -> Hit | None:
        """The entry, verified. While Redis is away: what this process saw lately and its node still has."""
        return self._here.reader.get(key)

    def used_on_device(self, key: Key, size: int, cost_s: float) -> None:
        """Counts the use of an object of `device` as a hit: of `size` bytes, which once took `cost_s` to compute."""
        self._here.node.count_hit(key, "device", size, cost_s)

    def put(
        self,
        key: Key,
        content: bytes | memoryview,
        *,
        about: dict[str, Any],
        cost_s: float,
        cls: Class,
    ) -> bool:
        """Keeps the bytes in memory and on disk. False when nothing is kept.

        False too while Redis is away: until it is back, only this process finds them.

        about    what JSON can hold; with prefix (a digest) and position (int) the entry is found by `prefixes`.
        cost_s   seconds it took to compute: what it is worth.

        A digest that has other bytes already keeps the first ("conflicts" in the stats).
        """
        return self._here.writer.put(key, content, about=about, cost_s=cost_s, cls=cls)

    def prefixes(self, kind: str, prefix_digest: str) -> list[int]:
        """Positions, ascending, at which entries of this kind were put with `about["prefix"] == prefix_digest`."""
        return self._here.node.index.positions(kind, prefix_digest)

    def pin(self, digest: str, ttl_s: float, holder: str | None = None) -> bool:
        """Nobody evicts the entry for so long. False when there is none. The pin is this process' or the `holder`'s."""
        return self._here.node.index.pin(digest, ttl_s, holder)

    def unpin(self, digest: str, holder: str | None = None) -> bool:
        """Ends such a pin of an entry. False when there is none."""
        return self._here.node.index.pin(digest, 0, holder)

    def drop(self, by: Literal["model", "lora", "tenant", "kind", "digest"], value: str) -> int:
        """Forgets entries everywhere, and how many they were.

        Files of other nodes and memories of other processes follow at their next beat.
        """
        dropped = self._here.node.index.drop(by, value)
        self.flush()
        return dropped

    def forget(self, key: Key) -> None:
        """The entry gives way to a better one, or cannot be read: nobody finds it, and nobody has to hear of it."""
        self._here.node.forget_entry(key)

    def entries(
        self,
        *,
        after: str | None = None,
        limit: int = 100,
        kind: str | None = None,
        tenant: str | None = None,
        model: str | None = None,
    ) -> tuple[list[dict[str, Any]], str | None]:
        """A page by kind and digest, of up to `limit` entries, and the `after` of the next one, None at the end."""
        return self._here.node.index.entries(after=after, limit=limit, kind=kind, tenant=tenant, model=model)

    def stats(self) -> dict[str, Any]:
        """entries by kind; nodes, alive or not, with bytes and blobs of each tier; counts since the index began.

        counts, of all processes: hits:{kind}:{tier}, misses:{kind}, saved_s:{kind}, bytes:{kind}:{tier} (of hits),
        evicted:{kind}:{tier}, refused:{tier}, full:{tier}, corrupt:{tier}, conflicts, dropped.
        """
        return self._here.node.index.stats()

    def serve(self, sha256: str, authorization: str) -> memoryview | None:
        """The answer to GET /v1/cache/blobs/{sha256}, without asking Redis: the bytes, or None for a 404.

        Raises PermissionError when the header is not that of a peer with the same secret.
        """
        if not _DIGEST.fullmatch(sha256):
            return None
        if not opens(self._setup.secret, sha256, authorization):
            raise PermissionError("The Authorization header does not open this blob.")
        return self._here.reader.serve(sha256)

    def flush(self) -> bool:
        """Does at once what the next beat would: tell, delete, promote. False when Redis is away."""
        return self._here.upkeep.beat()

    @property
    def _here(self) -> "_Opened":
        opened = self._opened
        if opened is None or opened.node.pid != os.getpid():
            with self._lock:
                if self._opened is None or self._opened.node.pid != os.getpid():
                    self._opened = _Opened(self._setup)
                opened = self._opened
        return opened


class _Opened:
    """A cache in one process."""

    def __init__(self, setup: Setup):
        self.node = Node(setup)
        self.reader = Reader(self.node)
        self.writer = Writer(self.node)
        self.upkeep = Upkeep(self.node, self.writer)
        self.node.link.greet()
        self.upkeep.start()
