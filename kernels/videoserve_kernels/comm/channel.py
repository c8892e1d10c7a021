"""What rank 0 says to the others before each unit of work, and their answers: small JSON documents."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from videoserve_kernels.comm.exchange import CommunicationError, finish

# The first message of a document: its length in eight bytes and its beginning. Most have no second message.
FRAME = 1024
LENGTH_BYTES = 8
# A server without work says nothing for months.
FOREVER_S = 365 * 24 * 3600.0
TAG = 0


class Channel:
    """From rank 0 to all others of torch.distributed's world and back, in a process group of its own.

    It goes over gloo from a CPU's memory, also where tensors travel by NCCL: waiting for the next document may take
    hours, and a card must not spin meanwhile. It stays whole when a collective of a mesh breaks. A peer that dies is
    noticed at once, since its connections close; one that stands still only by `limit_s`.
    """

    def __init__(self) -> None:
        """Every rank of the world calls this at the same place."""
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._process = dist.new_group(backend="gloo", timeout=timedelta(seconds=FOREVER_S))

    def tell(self, document: dict[str, Any], *, limit_s: float = FOREVER_S) -> None:
        """Rank 0: says it to all others. CommunicationError when one is gone or does not listen within the limit."""
        peers = range(1, self.size)
        for part in packed(document):
            self._finish("telling the ranks", [self._send(part, peer) for peer in peers], limit_s)

    def hear(self, *, limit_s: float = FOREVER_S) -> dict[str, Any]:
        """The others: what rank 0 says next. CommunicationError when it is gone or says nothing within the limit."""
        return self._receive(0, limit_s)

    def answer(self, document: dict[str, Any], *, limit_s: float = FOREVER_S) -> None:
        """The others: says it to rank 0."""
        for part in packed(document):
            self._finish("answering rank 0", [self._send(part, 0)], limit_s)

    def answers(self, *, limit_s: float = FOREVER_S) -> dict[int, dict[str, Any]]:
        """Rank 0: one answer of every other rank, by rank."""
        return {peer: self._receive(peer, limit_s) for peer in range(1, self.size)}

    def close(self) -> None:
        """Lets the connections go: who still listens gets a CommunicationError."""
        dist.destroy_process_group(self._process)

    def _receive(self, peer: int, limit_s: float) -> dict[str, Any]:
        first = torch.empty(FRAME, dtype=torch.uint8)
        self._take(first, peer, limit_s)
        length = int.from_bytes(first[:LENGTH_BYTES].numpy().tobytes(), "little")
        rest = torch.empty(max(0, length - (FRAME - LENGTH_BYTES)), dtype=torch.uint8)
        if len(rest):
            self._take(rest, peer, limit_s)
        text = torch.cat((first[LENGTH_BYTES:], rest))[:length].numpy().tobytes()
        document: dict[str, Any] = json.loads(text)
        return document

    def _send(self, part: Tensor, peer: int) -> dist.Work | None:
        try:
            return dist.isend(part, group=self._process, group_dst=peer, tag=TAG)
        except RuntimeError as error:
            raise CommunicationError(f"Rank {peer} is gone ({error}).") from error

    def _take(self, box: Tensor, peer: int, limit_s: float) -> None:
        try:
            work = dist.irecv(box, group=self._process, group_src=peer, tag=TAG)
        except RuntimeError as error:
            raise CommunicationError(f"Rank {peer} is gone ({error}).") from error
        self._finish(f"hearing rank {peer}", [work], limit_s)

    def _finish(self, label: str, works: Sequence[dist.Work | None], limit_s: float) -> None:
        finish(label, [work for work in works if work is not None], limit_s)


def packed(document: dict[str, Any]) -> list[Tensor]:
    """A document as one message of FRAME bytes, and a second one with what did not fit."""
    text = json.dumps(document, separators=(",", ":")).encode()
    first, rest = text[: FRAME - LENGTH_BYTES], text[FRAME - LENGTH_BYTES :]
    frame = (len(text).to_bytes(LENGTH_BYTES, "little") + first).ljust(FRAME, b" ")
    return [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in (frame, rest) if part]
