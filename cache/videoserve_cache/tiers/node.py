"""What one process has in hand of its node: the index, the tiers, and what it remembers. A fork makes its own."""

import hashlib
import logging
import os
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from videoserve_cache.index.index import Index
from videoserve_cache.index.key import Key
from videoserve_cache.index.link import Away, Link
from videoserve_cache.index.touches import Touches
from videoserve_cache.tiers.blobs import Blobs
from videoserve_cache.tiers.device import DeviceTier
from videoserve_cache.tiers.hit import Hit
from videoserve_cache.tiers.limits import Limits
from videoserve_cache.tiers.peer import Peers
from videoserve_cache.tiers.pending import Pending
from videoserve_cache.tiers.presence import Presence
from videoserve_cache.tiers.recent import Recent

log = logging.getLogger(__name__)

# What happened, with which entry, in which tier, bytes, seconds to compute it.
OnEvent = Callable[[str, Key | None, str, int, float], None]
# Copies into memory that wait for a moment off the critical path; older ones give way.
PROMOTIONS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a cache was opened."""

    redis_url: str
    folder: Path
    node: str
    limits: Limits
    secret: bytes
    address: str | None
    on_event: OnEvent

    @property
    def memory_folder(self) -> Path:
        """One a node: two servers on a machine have two data folders."""
        name = hashlib.sha256(os.fsencode(self.folder.absolute())).hexdigest()[:16]
        return self.limits.shared_memory / f"videoserve-{os.getuid()}-{name}"


class Node:
    """Made by `SharedCache`, in each process that uses it."""

    def __init__(self, setup: Setup):
        limits = setup.limits
        self.setup = setup
        self.pid = os.getpid()
        self.link = Link(setup.redis_url, limits.patience_s)
        self.index = Index(self.link, setup.node, f"{setup.node}:{self.pid}:{secrets.token_hex(4)}")
        # Before there are tiers: it makes the folder of one.
        self.presence = Presence(setup.memory_folder)
        # Fastest first.
        self.tiers = {
            "memory": Blobs(setup.memory_folder, durable=False),
            "disk": Blobs(setup.folder / "blobs", durable=True),
        }
        self.limits = {"memory": limits.memory_bytes, "disk": limits.disk_bytes}
        self.peers = Peers(setup.secret, limits.fetch_s)
        self.device = DeviceTier(limits.device_bytes)
        self.recent = Recent()
        # How often this process has heard that entries were dropped by hand.
        self.drops = 0
        self.touches = Touches()
        self.pending = Pending()
        self._hits: weakref.WeakSet[Hit] = weakref.WeakSet()
        self._hits_lock = threading.Lock()
        self.promotions: deque[tuple[str, memoryview]] = deque(maxlen=PROMOTIONS)

    def close(self) -> None:
        """The last process of a node gives its memory back to the machine: the disk has the same."""
        if self.presence.leave():
            with suppress(Away):
                self.index.lost("memory", [*self.tiers["memory"].older(0.0)])
            self.presence.clear()
        self.presence.close()
        self.link.close()
        self.peers.close()

    def tell(self, what: str, key: Key | None = None, tier: str = "", size: int = 0, seconds: float = 0.0) -> None:
        self.setup.on_event(what, key, tier, size, seconds)

    def hold(self, hit: Hit) -> None:
        """Somebody uses it, until it is closed or nobody has it any more."""
        with self._hits_lock:
            self._hits.add(hit)

    def held(self) -> list[str]:
        """sha256 of what is in use."""
        with self._hits_lock:
            return sorted({hit.sha256 for hit in self._hits if not hit.closed})

    def count_hit(self, key: Key, tier: str, size: int, cost_s: float) -> None:
        self.touches.count(f"hits:{key.kind}:{tier}")
        self.touches.count(f"bytes:{key.kind}:{tier}", size)
        self.touches.count(f"saved_s:{key.kind}", cost_s)
        self.tell("hit", key, tier, size, cost_s)

    def forget(self) -> None:
        """What this process remembers of entries that were dropped somewhere."""
        self.drops += 1
        self.recent.clear()
        self.device.clear()

    def forget_entry(self, key: Key) -> None:
        """One entry, here and in the index. Raises Away."""
        self.recent.forget(key)
        self.device.drop(key.digest)
        self.index.forget(key.digest)

    def discard(self, trash: Iterable[tuple[str, str]]) -> None:
        """Deletes files that nobody refers to."""
        for tier, sha in trash:
            self.tiers[tier].remove(sha)
            self.tell("evict", tier=tier)

    def trim(self, tier: str, size: int = 0) -> None:
        """Brings a tier down to its limit, and to `size` bytes less than its file system has to spare. Raises Away."""
        more = True
        while more:
            more, trash = self.index.trim(tier, self.limits[tier], self.tiers[tier].spare() - size)
            self.discard(trash)

    def store(self, tier: str, sha: str, content: bytes | memoryview) -> bool:
        """Writes a file of a tier. False when it is larger than the tier, or the tier's disk does not take it."""
        size, blobs = len(content), self.tiers[tier]
        if size > self.limits[tier]:
            return False
        try:
            if blobs.spare() < size:
                with suppress(Away):
                    self.trim(tier, size)
            blobs.write(sha, content)
        except OSError as error:
            # The work that the bytes came from is done and must not fail for them.
            log.warning("the cache's %s does not take %d bytes: %s", tier, size, error)
            self.touches.count(f"full:{tier}")
            self.tell("full", tier=tier, size=size)
            return False
        return True

    def promote(self, sha: str, content: memoryview) -> None:
        """Copies known bytes into memory, where the node's other processes have them too."""
        if self.tiers["memory"].has(sha) or not self.store("memory", sha, content):
            return
        try:
            placed, trash = self.index.place(sha, "memory", self.limits["memory"])
        except Away:
            # The file stays until somebody compares it with the index.
            return
        self.discard(trash)
        if placed:
            self.tell("promote", tier="memory", size=len(content))

    def lost(self, tier: str, sha: str, *, corrupt: bool) -> None:
        """A file is not there, or is not what its name says and has to go."""
        if corrupt:
            log.warning("the cache's %s had other bytes than those of %s; they are deleted", tier, sha)
            self.tiers[tier].remove(sha)
            self.tell("corrupt", tier=tier)
        try:
            self.index.lost(tier, [sha], corrupt=corrupt)
        except Away:
            log.info("redis is away: the index learns later that %s is not in %s", sha, tier)
