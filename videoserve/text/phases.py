"""Which layout a batch is computed by: that by which the ranks wait less for messages."""

from collections.abc import Sequence

from videoserve.text.batch import Part, Span
from videoserve.text.models.deepseek_v4_shape import V4Shape
from videoserve.text.models.deepseek_v4_volume import Sent
from videoserve.text.sharing import Layout
from videoserve_kernels.comm.calibration import Calibration
from videoserve_kernels.comm.counters import Traffic


def tokens_from(shape: object, calibration: Calibration, *, itemsize: int, most: int) -> int | None:
    """From how many tokens of prompts on ranks take tokens and not heads, of powers of two up to `most`; None: never.

    By what messages take on the measured links. What is computed counts for nothing: by tokens it is never more.
    """
    if not isinstance(shape, V4Shape) or calibration.ranks == 1:
        return None
    start, tokens = None, 2 ** (most.bit_length() - 1)
    # From the longest down: a few tokens are one rank's and few messages, which says nothing of some more of them.
    while tokens:
        spent = {layout: _seconds(shape, calibration, tokens, itemsize, layout) for layout in LAYOUTS}
        if spent["tokens"] >= spent["heads"]:
            break
        start, tokens = tokens, tokens // 2
    return start


def layout_of(parts: Sequence[Part], tokens_from: int | None) -> Layout:
    """Of a batch of these parts: answers are a token each, and whatever is longer is a piece of a prompt."""
    prompts = sum(len(part.tokens) for part in parts if len(part.tokens) > 1)
    return "tokens" if tokens_from is not None and prompts >= tokens_from else "heads"


LAYOUTS: tuple[Layout, ...] = ("heads", "tokens")


def _seconds(shape: V4Shape, calibration: Calibration, tokens: int, itemsize: int, layout: Layout) -> float:
    """Of one prompt's messages, for the rank that waits longest."""
    ranks = calibration.ranks

    def of(sent: Traffic) -> float:
        return sent.messages / (ranks - 1) * calibration.latency_s + sent.bytes / calibration.all_to_all

    spans = [Span(0, tokens, 0)]
    return max(
        of(
            Sent(
                shape=shape, spans=spans, rank=rank, ranks=ranks, itemsize=itemsize,
                at_once_bytes=calibration.at_once_bytes,
            ).by(layout)
        )
        for rank in range(ranks)
    )  # fmt: skip
