"""The adapters on the experts of a loaded model: which are bound, and what is kept ready in host memory."""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from videoserve.config import Settings
from videoserve.errors import JobFailed
from videoserve.storage.open_adapters import open_adapter_store
from videoserve.types import AdapterUse
from videoserve.video.families.wan import WanTransformer
from videoserve_lora.adapter import Adapter, PartName
from videoserve_lora.binder import Binder
from videoserve_lora.canonical import opened
from videoserve_lora.prepared import Prepared, prepare
from videoserve_lora.slots import Use
from videoserve_lora.store import AdapterStore

# What one expert has bound: digest and weight of each, in the order of the digests.
Bound = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """Where adapters lie, and how many bytes of host memory those may take that have been read."""

    store: AdapterStore
    memory: int

    @classmethod
    def of(cls, settings: Settings) -> "Shelf":
        return cls(store=open_adapter_store(settings), memory=settings.adapter_memory)

    def path(self, digest: str) -> Path:
        """Of a file whose bytes are what they should be. KeyError and ValueError, sentences."""
        path = self.store.path(digest)
        if not self.store.whole(digest):
            raise ValueError(f"The file of the adapter {digest[:12]} is damaged; upload it again.")
        return path


class Bindings:
    """Binds the adapters of whichever job is computed next; one that cannot be bound fails its job, and none is bound.

    Every rank has its own, over the same shelf.
    """

    def __init__(self, experts: Sequence[WanTransformer], shelf: Shelf | None) -> None:
        """Without a shelf there are no adapters."""
        self._binders = [Binder(expert.module) for expert in experts]
        self._dtype, self._device = experts[0].dtype, experts[0].device
        self._shelf = shelf
        self._bound: list[Bound] = [() for _ in experts]
        self._ready: OrderedDict[tuple[int, Bound], Prepared] = OrderedDict()
        # By expert and digest, of all that have been read: a file may be gone when the video is finished.
        self._extents: dict[tuple[int, str], tuple[int, int]] = {}

    def bind(self, expert: int, loras: Sequence[AdapterUse]) -> None:
        """What a plan says, on the expert that computes next; nothing is done where it is bound already.

        JobFailed for an adapter that is gone, damaged or for another model.
        """
        wanted = self.of_expert(expert, loras)
        if wanted == self._bound[expert]:
            return
        binder = self._binders[expert]
        self._bound[expert] = ()
        try:
            if wanted:
                binder.bind(self._prepared(expert, wanted))
            else:
                binder.reset()
        except (KeyError, ValueError) as error:
            binder.reset()
            raise JobFailed("adapter_unusable", str(error.args[0])) from None
        except Exception:
            binder.reset()
            raise
        self._bound[expert] = wanted

    def of_expert(self, expert: int, loras: Sequence[AdapterUse]) -> Bound:
        """Digest and weight of those that change this expert."""
        name = self.name(expert)
        return tuple((use.digest, use.weight) for use in loras if name == "any" or use.target in ("all", name))

    def name(self, expert: int) -> PartName:
        """What an adapter calls this expert."""
        if len(self._binders) == 1:
            return "any"
        return "high" if expert == 0 else "low"

    def forget(self) -> None:
        """What is kept ready in host memory; what is bound stays bound."""
        self._ready.clear()

    def describe(self, loras: Sequence[AdapterUse]) -> list[dict[str, Any]]:
        """What a receipt says of the adapters of a plan: changed modules and parameters, and the largest rank."""
        return [{**use.to_dict(), **self._extent(use)} for use in loras]

    def _extent(self, use: AdapterUse) -> dict[str, int]:
        bound = [number for number in range(len(self._binders)) if self.of_expert(number, [use])]
        if any((number, use.digest) not in self._extents for number in bound):
            # A run that began with its last latents has bound nothing.
            with opened(self._path(use.digest)) as adapter:
                for number in bound:
                    self._learn(number, use.digest, adapter)
        extents = [self._extents[number, use.digest] for number in bound]
        return {
            "parameters": sum(parameters for parameters, _ in extents),
            "rank": max((rank for _, rank in extents), default=0),
        }

    def _learn(self, expert: int, digest: str, adapter: Adapter) -> None:
        part = adapter.part(self.name(expert))
        ranks = [] if part is None else [change.rank for change in part.changes.values()]
        self._extents[expert, digest] = 0 if part is None else len(part.parameters), max(ranks, default=0)

    def _path(self, digest: str) -> Path:
        if self._shelf is None:
            raise KeyError("This engine was opened without adapters.")
        return self._shelf.path(digest)

    def _prepared(self, expert: int, wanted: Bound) -> Prepared:
        """From host memory, or from the store; the one used longest ago makes room."""
        key = expert, wanted
        if key not in self._ready:
            self._ready[key] = self._read(expert, wanted)
        self._ready.move_to_end(key)
        memory = 0 if self._shelf is None else self._shelf.memory
        while len(self._ready) > 1 and sum(each.nbytes for each in self._ready.values()) > memory:
            self._ready.popitem(last=False)
        return self._ready[key]

    def _read(self, expert: int, wanted: Bound) -> Prepared:
        with ExitStack() as stack:
            uses = [
                Use(digest=digest, adapter=stack.enter_context(opened(self._path(digest))), weight=weight)
                for digest, weight in wanted
            ]
            for use in uses:
                self._learn(expert, use.digest, use.adapter)
            places = self._binders[expert].places(self._dtype)
            return prepare(uses, self.name(expert), places, pinned=self._device.type == "cuda")
