"""From a key to its bytes: index, memory, disk, peers; a miss whenever anything is not as it should be."""

import logging
import random

import httpx

from videoserve_cache.index.entry import Entry, Peer
from videoserve_cache.index.key import Key
from videoserve_cache.index.link import Away
from videoserve_cache.tiers.blobs import Corrupt
from videoserve_cache.tiers.hit import Hit, Tier
from videoserve_cache.tiers.node import Node

log = logging.getLogger(__name__)


class Reader:
    """Never raises for what happened to Redis, files or peers."""

    def __init__(self, node: Node):
        self._node = node

    def get(self, key: Key) -> Hit | None:
        entry = self._find(key)
        found = self._content(entry) if entry else None
        if entry is None or found is None:
            self._node.touches.count(f"misses:{key.kind}")
            self._node.tell("miss", key)
            return None
        content, tier = found
        return self._hit(key, entry, content, tier)

    def serve(self, sha: str) -> memoryview | None:
        """The bytes for a peer; None when this node does not have them, whole."""
        for tier, blobs in self._node.tiers.items():
            if blobs.has(sha) and (content := self._file(tier, sha, None)) is not None:
                return content
        return None

    def _find(self, key: Key) -> Entry | None:
        node = self._node
        try:
            entry = node.index.lookup(key)
        except Away:
            return node.recent.find(key)
        if entry is None:
            node.recent.forget(key)
        else:
            node.recent.remember(key, entry)
        return entry

    def _content(self, entry: Entry) -> tuple[memoryview, Tier] | None:
        tiers: tuple[Tier, ...] = ("memory", "disk")
        for tier in tiers:
            if tier in entry.here and (content := self._file(tier, entry.sha256, entry.size)) is not None:
                if tier == "disk":
                    self._node.promotions.append((entry.sha256, content))
                return content, tier
        # Not always the same one.
        for peer in random.sample(entry.peers, len(entry.peers)):
            if (fetched := self._fetched(peer, entry)) is not None:
                # At once, though others wait for it: it holds memory that a mapped file does not.
                self._node.promote(entry.sha256, fetched)
                return fetched, "peer"
        return None

    def _file(self, tier: str, sha: str, size: int | None) -> memoryview | None:
        node = self._node
        try:
            return node.tiers[tier].read(sha, size)
        except FileNotFoundError:
            node.lost(tier, sha, corrupt=False)
        except Corrupt:
            node.lost(tier, sha, corrupt=True)
        except OSError as error:
            log.warning("the cache's %s cannot be read: %s", tier, error)
        return None

    def _fetched(self, peer: Peer, entry: Entry) -> memoryview | None:
        node = self._node
        try:
            content = node.peers.fetch(peer, entry.sha256, entry.size)
        except httpx.HTTPError as error:
            log.warning("the node %s does not give its blob: %s", peer.node, error)
            return None
        except ValueError as error:
            log.warning("%s", error)
            node.touches.count("corrupt:peer")
            node.tell("corrupt", tier="peer")
            return None
        # Writable, like what is mapped from a file.
        return None if content is None else memoryview(content)

    def _hit(self, key: Key, entry: Entry, content: memoryview, tier: Tier) -> Hit:
        node = self._node
        hit = Hit(
            key=key, content=content, about=entry.about, tier=tier, age_s=entry.age_s, cost_s=entry.cost_s,
            size=entry.size, cls=entry.cls, sha256=entry.sha256,
        )  # fmt: skip
        node.hold(hit)
        node.touches.use(entry.sha256)
        node.count_hit(key, tier, entry.size, entry.cost_s)
        return hit
