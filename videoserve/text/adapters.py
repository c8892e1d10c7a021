"""The adapters that chats are answered with: read when a chat is admitted, ready for as long as one has them."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from videoserve.errors import JobFailed
from videoserve.text.adapted import Adapted
from videoserve.text.family import Model
from videoserve.types import AdapterUse
from videoserve_lora.canonical import opened
from videoserve_lora.slots import Slots, Use
from videoserve_lora.store import AdapterStore

# Digest and weight of each, in the order of the digests.
Named = tuple[tuple[str, float], ...]


class ChatAdapters:
    """Sets of adapters for one model. A set that chats have stays until their end, whatever becomes of its files;
    beyond that the sets used last stay, `memory` bytes of them."""

    def __init__(self, store: Callable[[], AdapterStore], model: Model, memory: int) -> None:
        """`store` is opened once a chat names an adapter."""
        self._open, self._model, self._memory = store, model, memory
        self._ready: OrderedDict[Named, Adapted] = OrderedDict()

    def of(self, loras: Sequence[AdapterUse]) -> Adapted | None:
        """The set that a plan names; None for none. JobFailed for what is gone, damaged or for another model."""
        if not loras:
            return None
        named = tuple((use.digest, use.weight) for use in loras)
        if named not in self._ready:
            try:
                self._ready[named] = self._read(named)
            except (KeyError, ValueError) as error:
                raise JobFailed("adapter_unusable", str(error.args[0])) from None
        self._ready.move_to_end(named)
        while len(self._ready) > 1 and sum(each.nbytes for each in self._ready.values()) > self._memory:
            self._ready.popitem(last=False)
        return self._ready[named]

    def _read(self, named: Named) -> Adapted:
        store = self._open()
        with ExitStack() as stack:
            uses = []
            for digest, weight in named:
                path = store.path(digest)
                if not store.whole(digest):
                    raise ValueError(f"The file of the adapter {digest[:12]} is damaged; upload it again.")
                uses.append(Use(digest=digest, adapter=stack.enter_context(opened(path)), weight=weight))
            slots = Slots(uses, "any")
            if len(slots.digests) < len(named):
                raise ValueError("One of the adapters changes nothing of this model.")
            return self._model.adapted(slots)
