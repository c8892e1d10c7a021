"""Keys and values of beginnings that outlive the process: entries of the shared cache, one for a few blocks."""

import logging
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor

from videoserve.text.blocks import Hash
from videoserve.text.pools import BLOCK, KvPool
from videoserve.text.sequence import Sequence
from videoserve_cache.index import Key
from videoserve_cache.tiers import SharedCache

log = logging.getLogger(__name__)

# Blocks an entry has at most: a lookup for each 128 tokens.
GROUP = 8
# Threads that read what is kept.
READERS = 4
# Entries that may wait to be written; more are not kept.
WAITING = 64
# Of so many entries a worker knows that they are kept; of others it asks the cache again.
KNOWN = 1 << 16


class KeptPrefixes:
    """`restore` reads into a sequence's blocks what is kept behind those it found; `keep` writes, in a thread."""

    def __init__(self, cache: SharedCache, pool: KvPool, model: str):
        self._cache, self._pool, self._model = cache, pool, model
        # The oldest first; those that wait to be written are among them.
        self._stored: dict[Hash, None] = {}
        self._lock = threading.Lock()
        self._queue: queue.Queue[tuple[Hash, Key, Tensor, float] | None] = queue.Queue(maxsize=WAITING)
        self._thread = threading.Thread(target=self._write, name="kept-prefixes", daemon=True)
        self._thread.start()

    def restore(self, sequence: Sequence, tenant: str) -> int:
        """How many blocks behind the computed ones hold what was kept."""
        usable, hashes = len(sequence.known()), sequence.whole()
        done = have = sequence.computed // BLOCK
        groups = [hashes[at : at + GROUP] for at in range(done - done % GROUP, usable, GROUP)]
        for number, kept in enumerate(self._found(groups, sequence, tenant)):
            at = done - done % GROUP + number * GROUP
            for i in range(have, min(at + len(kept), usable)):
                self._pool.write(sequence.blocks[i], kept[i - at])
                have = i + 1
        return have - done

    def keep(self, sequence: Sequence, tenant: str, token_s: float) -> None:
        """Keeps what a sequence has computed, in groups of whole blocks; `token_s` are seconds a token took."""
        for at in range(0, sequence.sealed, GROUP):
            end = min(at + GROUP, sequence.sealed)
            hash_ = sequence.hashes[end - 1]
            if hash_ in self._stored or self._queue.full():
                continue
            self._know(hash_)
            content = torch.stack([self._pool.read(block) for block in sequence.blocks[at:end]])
            self._queue.put((hash_, self._key(hash_, sequence, tenant), content, token_s * len(content) * BLOCK))

    def forget(self) -> None:
        """Entries were dropped: none is known to be kept, and those that wait to be are not written."""
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
                self._queue.task_done()
        with self._lock:
            self._stored.clear()

    def close(self) -> None:
        """Waits until everything is written."""
        self._queue.put(None)
        self._thread.join()

    def _found(self, groups: list[list[Hash]], sequence: Sequence, tenant: str) -> Iterator[Tensor]:
        """What is kept of each of these, up to the first that is not kept whole."""

        def find(hashes: list[Hash]) -> Tensor:
            return self._find(hashes, sequence, tenant)

        for first in groups[:1]:
            kept = find(first)
            yield kept
            if len(kept) < GROUP:
                return
        # Most of the time of an entry is its checksum, for which Python's threads do not wait on each other.
        with ThreadPoolExecutor(READERS) as readers:
            for kept in readers.map(find, groups[1:]):
                yield kept
                if len(kept) < GROUP:
                    readers.shutdown(cancel_futures=True)
                    return

    def _find(self, hashes: list[Hash], sequence: Sequence, tenant: str) -> Tensor:
        """What is kept of a group with these hashes, [n, 2, layers, BLOCK, M, D]; n is 0 for nothing.

        A group at the end of what was computed is kept as far as it went, by its last block.
        """
        for count in range(len(hashes), 0, -1):
            hash_ = hashes[count - 1]
            hit = self._cache.get(self._key(hash_, sequence, tenant))
            if hit is None:
                self._unknow(hash_)
                continue
            with hit:
                content = torch.frombuffer(hit.content, dtype=self._pool.keys.dtype)
            if content.numel() == count * self._pool.values_a_block:
                self._know(hash_)
                return content.view(count, *self._pool.block_shape)
        return torch.empty(0, *self._pool.block_shape)

    def _key(self, hash_: Hash, sequence: Sequence, tenant: str) -> Key:
        loras = tuple(sorted({use.digest for use in sequence.plan.loras}))
        return Key(kind="kv_prefix", digest=hash_.hex(), tenant=tenant, model=self._model, loras=loras)

    def _write(self) -> None:
        while (waiting := self._queue.get()) is not None:
            self._write_one(*waiting)
            self._queue.task_done()

    def _write_one(self, hash_: Hash, key: Key, content: Tensor, cost_s: float) -> None:
        about = {"tokens": len(content) * BLOCK, "dtype": str(content.dtype).removeprefix("torch.")}
        try:
            # NumPy knows no bfloat16; bytes are bytes.
            values = content.cpu().view(torch.uint8).numpy().data.cast("B")
            # Computed in pieces of other sizes the same tokens give other last bits.
            if not self._cache.put(key, values, about=about, cost_s=cost_s, cls="E1"):
                self._unknow(hash_)
        except (OSError, RuntimeError):
            self._unknow(hash_)
            # A beginning that is not kept is computed again; chats go on, and so do the next ones here.
            log.exception("the beginning of a chat was not kept")

    def _know(self, hash_: Hash) -> None:
        with self._lock:
            self._stored[hash_] = None
            if len(self._stored) > KNOWN:
                del self._stored[next(iter(self._stored))]

    def _unknow(self, hash_: Hash) -> None:
        with self._lock:
            self._stored.pop(hash_, None)
