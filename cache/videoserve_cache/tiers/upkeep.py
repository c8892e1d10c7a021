"""What a process does for its node beside the work: heartbeat, telling, catching up, deleting, promoting."""

import logging
import threading
from typing import Final

from videoserve_cache.index.link import Away
from videoserve_cache.tiers.node import Node
from videoserve_cache.tiers.reconcile import reconcile
from videoserve_cache.tiers.writer import Writer

log = logging.getLogger(__name__)

# How long nobody looks for a Redis that is away.
PAUSE_S: Final = 0.1
# Files of writers that died between their last two steps are found again after so many beats at most.
RECONCILE_BEATS: Final = 600
# A pin of a reader that lives is renewed at each beat; that of a dead one ends after so many.
PIN_BEATS: Final = 10


class Upkeep:
    """A thread of the process; `beat` does the same at once."""

    def __init__(self, node: Node, writer: Writer):
        self._node = node
        self._writer = writer
        self._stopped = False
        # One beat at a time.
        self._lock = threading.Lock()
        self._drops = 0
        # Beats until files and index are compared again; the first one does.
        self._due = 0
        self._thread = threading.Thread(target=self._run, name="cache upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Tells what was used since the last beat, and ends."""
        self._stopped = True
        self._node.link.breaker.news.set()
        self._thread.join()
        self.beat()

    def beat(self) -> bool:
        """False when Redis is away."""
        with self._lock:
            try:
                self._rejoin()
                self._writer.catch_up()
                self._tell()
                self._hear()
                self._promote()
                for tier, blobs in self._node.tiers.items():
                    if blobs.spare() < 0:
                        self._node.trim(tier)
                if self._due <= 0:
                    reconcile(self._node)
                    self._due = RECONCILE_BEATS
                self._due -= 1
            except Away:
                return False
            return True

    def _run(self) -> None:
        news = self._node.link.breaker.news
        while True:
            # In this order: a stop after the question wakes the wait below.
            news.clear()
            if self._stopped:
                return
            try:
                answered = self.beat()
            except Exception:
                log.exception("the cache's upkeep failed; it tries again")
                answered = True
            news.wait(self._node.setup.limits.beat_s if answered else PAUSE_S)

    def _rejoin(self) -> None:
        breaker = self._node.link.breaker
        if not breaker.is_open:
            return
        if not self._node.link.answers():
            raise Away
        breaker.close()
        log.info("redis answers again")
        self._node.tell("rejoined")

    def _tell(self) -> None:
        node = self._node
        pins = node.held()
        told = node.touches.take()
        if not (pins or told.uses or told.counts):
            return
        try:
            node.index.touch(told, pins, PIN_BEATS * node.setup.limits.beat_s)
        except Away:
            node.touches.give_back(told)
            raise

    def _hear(self) -> None:
        setup = self._node.setup
        trash, drops, new = self._node.index.beat(setup.address, setup.limits.life_s, setup.limits.forget_s)
        self._node.discard(trash)
        if new:
            # Redis may have come back without what it knew.
            self._due = 0
        if drops != self._drops:
            self._drops = drops
            self._node.forget()

    def _promote(self) -> None:
        node = self._node
        while node.promotions:
            node.promote(*node.promotions.popleft())
