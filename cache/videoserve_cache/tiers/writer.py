"""From bytes to an entry: temporary file, flush, rename, checksum, and a commit that makes it ready."""

import hashlib
import math
from typing import Any

from videoserve_cache.index.entry import Entry
from videoserve_cache.index.key import Class, Key
from videoserve_cache.index.link import Away
from videoserve_cache.tiers.node import Node
from videoserve_cache.tiers.pending import Commit


class Writer:
    """Never raises for what happened to Redis or the disks."""

    def __init__(self, node: Node):
        self._node = node

    def put(self, key: Key, content: bytes | memoryview, *, about: dict[str, Any], cost_s: float, cls: Class) -> bool:
        if not (math.isfinite(cost_s) and cost_s >= 0):
            raise ValueError(f"A cache entry cannot cost {cost_s} seconds: that is a number from 0 on.")
        node = self._node
        if node.pending.full:
            return False
        sha = hashlib.sha256(content).hexdigest()
        entry = Entry(sha256=sha, size=len(content), about=about, cost_s=cost_s, cls=cls, age_s=0.0)
        written = {tier: limit for tier, limit in node.limits.items() if node.store(tier, sha, content)}
        if not written:
            return False
        commit = Commit(key=key, entry=entry, limits=written)
        try:
            placed = self._commit(commit)
        except Away:
            node.pending.add(commit)
            node.recent.remember(key, entry)
            return False
        if placed:
            node.tell("put", key, "+".join(placed), entry.size, cost_s)
        return bool(placed)

    def catch_up(self) -> None:
        """Commits what was put while Redis was away. Raises Away."""
        while (commit := self._node.pending.take()) is not None:
            try:
                self._commit(commit)
            except Away:
                self._node.pending.give_back(commit)
                raise

    def _commit(self, commit: Commit) -> list[str]:
        node = self._node
        placed, trash = node.index.commit(commit.key, commit.entry, commit.limits)
        node.discard(trash)
        if placed:
            node.recent.remember(commit.key, commit.entry)
        else:
            node.recent.forget(commit.key)
        return placed
