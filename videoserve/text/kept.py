"""Keys and values of beginnings that outlive the process: entries of the shared cache, one for a few blocks."""

import logging
import queue
import threading
from typing import Any

import torch
from torch import Tensor

from videoserve.text.blocks import Hash
from videoserve.text.pools import BLOCK, KvPool
from videoserve.text.sequence import Sequence
from videoserve_cache.index import Key
from videoserve_cache.tiers import SharedCache

log = logging.getLogger(__name__)

# Blocks an entry: a lookup for each 128 tokens.
GROUP = 8
# Entries that may wait to be written; more are not kept.
WAITING = 64


class KeptPrefixes:
    """`restore` reads into a sequence's blocks what is kept behind those it found; `keep` writes, in a thread."""

    def __init__(self, cache: SharedCache, pool: KvPool, model: str):
        self._cache, self._pool, self._model = cache, pool, model
        self._stored: set[Hash] = set()
        self._queue: queue.Queue[tuple[Key, Tensor, float] | None] = queue.Queue(maxsize=WAITING)
        self._thread = threading.Thread(target=self._write, name="kept-prefixes", daemon=True)
        self._thread.start()

    def restore(self, sequence: Sequence, tenant: str) -> int:
        """How many blocks behind the computed ones hold what was kept."""
        done = sequence.computed // BLOCK
        hashes = sequence.known()
        at = done - done % GROUP
        while at + GROUP <= len(hashes):
            hit = self._cache.get(self._key(hashes[at + GROUP - 1], sequence, tenant))
            if hit is None:
                break
            with hit:
                content = torch.frombuffer(hit.content, dtype=self._pool.keys.dtype)
            if content.numel() != GROUP * self._pool.values_a_block:
                break
            groups = content.view(GROUP, *self._pool.block_shape)
            for i in range(max(done, at), at + GROUP):
                self._pool.write(sequence.blocks[i], groups[i - at])
            self._stored.add(hashes[at + GROUP - 1])
            at += GROUP
        return max(at - done, 0)

    def keep(self, sequence: Sequence, tenant: str, token_s: float) -> None:
        """Keeps the whole groups of what a sequence has computed; `token_s` are seconds a token took."""
        for at in range(0, sequence.sealed - GROUP + 1, GROUP):
            hash_ = sequence.hashes[at + GROUP - 1]
            if hash_ in self._stored or self._queue.full():
                continue
            self._stored.add(hash_)
            content = torch.stack([self._pool.read(block) for block in sequence.blocks[at : at + GROUP]])
            self._queue.put((self._key(hash_, sequence, tenant), content, token_s * GROUP * BLOCK))

    def close(self) -> None:
        """Waits until everything is written."""
        self._queue.put(None)
        self._thread.join()

    def _key(self, hash_: Hash, sequence: Sequence, tenant: str) -> Key:
        loras = tuple(sorted({use.digest for use in sequence.plan.loras}))
        return Key(kind="kv_prefix", digest=hash_.hex(), tenant=tenant, model=self._model, loras=loras)

    def _write(self) -> None:
        while (job := self._queue.get()) is not None:
            key, content, cost_s = job
            about: dict[str, Any] = {"tokens": GROUP * BLOCK, "dtype": str(content.dtype).removeprefix("torch.")}
            try:
                # NumPy knows no bfloat16; bytes are bytes.
                values = content.cpu().view(torch.uint8).numpy().data.cast("B")
                # Computed in pieces of other sizes the same tokens give other last bits.
                self._cache.put(key, values, about=about, cost_s=cost_s, cls="E1")
            except (OSError, RuntimeError):
                # A beginning that is not kept is computed again; chats go on, and so do the next ones here.
                log.exception("the beginning of a chat was not kept")
