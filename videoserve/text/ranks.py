"""The ranks of a chat worker: each loads its share of the model, and computes the batches that rank 0 decides on."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from videoserve.config import Settings
from videoserve.storage.open_adapters import open_adapter_store
from videoserve.text.adapters import ChatAdapters
from videoserve.text.batch import Batch, Part
from videoserve.text.load import Loaded, load_model
from videoserve.text.phases import layout_of, tokens_from
from videoserve.text.pools import BLOCK
from videoserve.text.sharing import Layout, Sharing
from videoserve.types import AdapterUse
from videoserve_kernels.comm import calibration
from videoserve_kernels.comm.calibrate import calibrate, name_of
from videoserve_kernels.comm.calibration import Calibration
from videoserve_kernels.comm.channel import Channel
from videoserve_kernels.comm.exchange import Handle
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.peers import addresses
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.topology import islands_of, look
from videoserve_kernels.device import pick_device, pick_dtype

log = logging.getLogger(__name__)


class Share:
    """One rank's share of a chat model and of its memory."""

    def __init__(self, settings: Settings, source: str, ranks: int, links: Calibration | None):
        """Every rank calls it. Raises ValueError, a sentence, for what cannot be used."""
        self.device = pick_device(settings.device)
        said = "float32" if settings.chat_weights == "float32" else settings.dtype
        dtype = pick_dtype(said, self.device)
        self.mesh = Mesh(
            ParallelPlan(tensor=ranks, staged=False),
            device=self.device,
            time_limit_s=settings.collective_timeout_s,
        )
        sharing = Sharing(mesh=self.mesh, at_once_bytes=0 if links is None else links.at_once_bytes)
        int8 = settings.chat_weights == "int8"
        self.loaded: Loaded = load_model(source, device=self.device, dtype=dtype, int8=int8, sharing=sharing)
        self.pool: Any = self.loaded.model.pool(settings.chat_cache_gb, settings.chat_streams)
        self.adapters = ChatAdapters(partial(open_adapter_store, settings), self.loaded.model, settings.adapter_memory)
        self.dtype = dtype

    def forward(self, parts: Sequence[Part], layout: Layout) -> Tensor:
        """Logits float32 [L, vocabulary] of the wanted tokens."""
        return self.loaded.model.forward(Batch.of(parts, BLOCK, self.device), self.pool, layout)


class Leader:
    """What the engine of rank 0 has of the ranks. Without a channel it is alone, and tells nobody anything.

    `rings` and `blocks` are of the pool, of which every rank has its share; `copy_ring` is a Pool's.
    """

    def __init__(self, channel: Channel | None, settings: Settings, source: str):
        """Raises ValueError, a sentence, for what cannot be used."""
        self._channel = channel
        self._ending: Handle[None] = Handle(lambda: None)
        self._copies: list[tuple[int, int]] = []
        links = None if channel is None else measured(channel, settings)
        if channel is not None:
            channel.tell({"kind": "begin", "source": source, "links": None if links is None else links.to_dict()})
        self.share = Share(settings, source, 1 if channel is None else channel.size, links)
        self.pool, self.loaded, self.adapters = self.share.pool, self.share.loaded, self.share.adapters
        self.blocks, self.rings = self.pool.blocks, self.pool.rings
        self._tokens_from = None
        if links is not None:
            self._tokens_from = tokens_from(
                self.loaded.model.shape, links, itemsize=self.share.dtype.itemsize, most=settings.chat_step_tokens
            )
            log.info(
                "ranks share the chat model",
                extra={"ranks": links.ranks, "at_once_bytes": links.at_once_bytes, "tokens_from": self._tokens_from},
            )

    @property
    def alone(self) -> bool:
        return self._channel is None

    def copy_ring(self, source: int, target: int) -> None:
        """On this rank now; the others do it before the next forward, until which nobody reads it."""
        self.pool.copy_ring(source, target)
        if not self.alone:
            self._copies.append((source, target))

    def forward(self, parts: Sequence[Part], loras: Sequence[Sequence[AdapterUse]]) -> Tensor:
        """Logits of the wanted tokens, computed by all ranks; `loras` are the adapters of each part, for the others.

        CommunicationError when a rank is lost.
        """
        layout = layout_of(parts, self._tokens_from)
        if self._channel is None:
            return self.share.forward(parts, layout)
        # What the last step ended with was under way while tokens were chosen.
        self._ending.wait()
        told = [said(part, uses) for part, uses in zip(parts, loras, strict=True)]
        self._channel.tell({"kind": "forward", "layout": layout, "copies": self._copies, "parts": told})
        self._copies = []
        logits = self.share.forward(parts, layout)
        self._ending = self.share.mesh.step_ending()
        return logits

    def close(self) -> None:
        """Lets the other ranks end."""
        if self._channel is not None:
            self._ending.wait()
            self._channel.tell({"kind": "close"})
            self._channel.close()
        self.share.mesh.close()


def follow(settings: Settings, channel: Channel) -> None:
    """The life of every other rank: does what rank 0 says until it closes. Raises what goes wrong, and ends with it."""
    header = channel.hear()
    while header["kind"] == "measure":
        _measure(settings, header)
        header = channel.hear()
    share = Share(settings, header["source"], channel.size, Calibration.from_dict(header["links"]))
    while (header := channel.hear())["kind"] != "close":
        for source, target in header["copies"]:
            share.pool.copy_ring(source, target)
        share.forward([heard(part, share.adapters) for part in header["parts"]], header["layout"])
        share.mesh.end_step()
    channel.close()
    share.mesh.close()


def said(part: Part, loras: Sequence[AdapterUse]) -> dict[str, Any]:
    """As JSON holds it: adapters by their names, which every rank reads for its own share of the matrices."""
    return {
        "tokens": list(part.tokens),
        "start": part.start,
        "blocks": list(part.blocks),
        "logits": part.logits,
        "ring": part.ring,
        "loras": [use.to_dict() for use in loras],
    }


def heard(told: dict[str, Any], adapters: ChatAdapters) -> Part:
    """What was said, with what this rank has of its adapters."""
    loras = [AdapterUse.from_dict(use) for use in told.pop("loras")]
    return Part(**told, adapted=adapters.of(loras))


def measured(channel: Channel, settings: Settings) -> Calibration:
    """What the links between the ranks give: as it was kept for this host, or as all ranks find it now."""
    device = pick_device(settings.device)
    first = device.index or 0
    places = addresses()[first : first + channel.size] if device.type == "cuda" else []
    host = look()
    believed = islands_of(host, places) if places else ()
    asked = {"kind": "measure", "fingerprint": host.fingerprint_for(places), "believed": believed}

    def ask() -> Calibration:
        channel.tell(asked)
        return _measure(settings, asked)

    backend = "nccl" if device.type == "cuda" else "gloo"
    dtype = name_of(pick_dtype(settings.dtype, device))
    return calibration.once(settings.data, host.fingerprint_for(places), channel.size, backend, dtype, ask)


def _measure(settings: Settings, asked: dict[str, Any]) -> Calibration:
    """This rank's part of it."""
    device = pick_device(settings.device)
    return calibrate(
        asked["fingerprint"],
        device=device,
        dtype=pick_dtype(settings.dtype, device),
        believed=tuple(map(tuple, asked["believed"])),
        time_limit_s=settings.collective_timeout_s,
    )
