"""What an engine finds that earlier requests left, and what it leaves to later ones. Rank 0's alone."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from videoserve.planning import reuse
from videoserve.planning.identity import DENOISED, Kind, Maker, identify, repeatable
from videoserve.types import VideoPlan
from videoserve.video.aside import Aside
from videoserve.video.run import Run
from videoserve_cache.tiers import Away, Key, SharedCache

log = logging.getLogger(__name__)

# Small, and asked for again soon: they stay on the device as well.
ENCODED = ("text_emb", "img_clip", "img_cond")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An entry's tensors by name, on the engine's device, and what else there is to it. Nobody writes into them."""

    tensors: dict[str, Tensor]
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A part in the device tier, and what its entry said of it at some moment."""

    part: Part
    cost_s: float
    made_at: float


class Kept:
    """The shared cache as one engine uses it; without a cache, and until it is known what `maker` it is, all is missed.

    What is looked for goes into the run's record. Nothing here raises for an entry that cannot be had.
    Entries are left beside the work: `settle` waits until they are there.
    """

    def __init__(self, cache: SharedCache | None, device: torch.device, *, batches_equal: bool = True) -> None:
        """`batches_equal`: jobs that share a forward get the bits that they get alone."""
        self.cache = cache
        self.maker: Maker | None = None
        self._aside = Aside()
        self._device = device
        self._batches_equal = batches_equal

    def key(self, kind: Kind, run: Run, **more: Any) -> Key | None:
        """None for what is not kept: see `identify`. `more` as there."""
        if self.cache is None or self.maker is None or not wanted(run):
            return None
        if kind == "result" and not repeatable(run.job.request):
            return None
        digest = identify(kind, run.job.plan, self.maker, run.job.tenant, **more)
        return None if digest is None else key_of(kind, digest, run.job.tenant, run.plan)

    def recall(self, kind: Kind, run: Run, **more: Any) -> Part | None:
        """The entry that this run could make, from the nearest tier that has it."""
        key = self.key(kind, run, **more)
        if key is None or self.cache is None:
            return None
        found = self.fetch(key)
        if found is None:
            run.record.reuse.append(reuse.missed(kind))
            return None
        held, tier = found
        age_s = time.time() - held.made_at
        run.record.reuse.append(
            reuse.hit(kind, cls="E0", tier=tier, age_s=age_s, size=held.part.nbytes, saved_s=held.cost_s)
        )
        return held.part

    def keep(
        self,
        kind: Kind,
        run: Run,
        part: Part,
        cost_s: float,
        *,
        place: dict[str, Any],
        then: Callable[[], None] = lambda: None,
        **more: Any,
    ) -> None:
        """Leaves a part that took `cost_s` seconds; `place` is the entry's `about` in the index.

        `then` is called beside the work once the entry is there, and not when it is not kept.
        """
        key, cache = self.key(kind, run, **more), self.cache
        if key is None or cache is None or not self.exact(run):
            return
        tensors = {name: tensor.cpu().contiguous() for name, tensor in part.tensors.items()}
        about = json.dumps(part.about)
        self._hold(key, Held(part=part, cost_s=cost_s, made_at=time.time()))

        def leave() -> None:
            if cache.put(key, save(tensors, {"about": about}), about=place, cost_s=cost_s, cls="E0"):
                then()

        self._aside.do(leave)

    def settle(self) -> None:
        """Waits until everything that was left is there for others."""
        self._aside.settle()

    def close(self) -> None:
        """Settles, and leaves nothing any more."""
        self._aside.close()

    def fetch(self, key: Key) -> tuple[Held, str] | None:
        """The part of an entry, and the tier that it came from."""
        return self._held(key) or self._fetched(key)

    def forget(self, kind: Kind, run: Run, **more: Any) -> None:
        """What is there gives way to what was kept next: it is right, but too short."""
        key = self.key(kind, run, **more)
        if key is not None and self.cache is not None:
            forget(self.cache, key)

    def exact(self, run: Run) -> bool:
        """Whether what a run has made is what it would make at any other time."""
        if run.record.crowded or any(entry.get("class") == "A" for entry in run.record.reuse):
            return False
        return self._batches_equal or all(batch <= 1 for batch in run.record.batches)

    def _held(self, key: Key) -> tuple[Held, str] | None:
        assert self.cache is not None
        held = self.cache.device.get(key.digest)
        if held is None:
            return None
        self.cache.used_on_device(key, held.part.nbytes, held.cost_s)
        return held, "device"

    def _fetched(self, key: Key) -> tuple[Held, str] | None:
        assert self.cache is not None
        hit = self.cache.get(key)
        if hit is None:
            return None
        with hit:
            part = read(bytes(hit.content), self._device)
        if part is None:
            forget(self.cache, key)
            return None
        held = Held(part=part, cost_s=hit.cost_s, made_at=time.time() - hit.age_s)
        self._hold(key, held)
        return held, hit.tier

    def _hold(self, key: Key, held: Held) -> None:
        assert self.cache is not None
        if key.kind in ENCODED:
            self.cache.device.put(key.digest, held, held.part.nbytes)


def wanted(run: Run) -> bool:
    """Whether the client lets the run use, and leave, what others can use."""
    return bool(run.plan.cache.get("reuse", True))


def key_of(kind: Kind, digest: str, tenant: str, plan: VideoPlan) -> Key:
    loras = tuple(sorted({use.digest for use in plan.loras})) if kind in DENOISED else ()
    return Key(kind=kind, digest=digest, tenant=tenant, model=plan.model, loras=loras)


def read(blob: bytes, device: torch.device) -> Part | None:
    """The part that was kept as these bytes; None when they are something else."""
    try:
        tensors = load(blob)
        head = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        about = json.loads(head["__metadata__"]["about"])
    except (SafetensorError, KeyError, ValueError) as error:
        log.warning("an entry of the cache is not one", extra={"reason": str(error)})
        return None
    return Part(tensors={name: tensor.to(device) for name, tensor in tensors.items()}, about=about)


def forget(cache: SharedCache, key: Key) -> None:
    try:
        cache.forget(key)
    except Away:
        # It stays, and is not used here.
        log.debug("redis is away: an entry of no use stays", extra={"kind": key.kind})
