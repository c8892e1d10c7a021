"""Which cards belong together, found in what was measured between them."""

from collections.abc import Sequence

from videoserve_kernels.comm.topology import Islands

# Within an island the slowest pair is at least this many times as fast as the fastest pair across.
GAP = 1.25


def clusters(rates: Sequence[Sequence[float]]) -> Islands:
    """The islands of a symmetric table of rates between pairs: the partition that stands out most, or one island.

    Cards are joined from the fastest pair to the slowest, and each partition on the way is judged by its slowest pair
    within against its fastest across; GAP is the least that counts. A card may stand alone, but not every one.
    """
    count = len(rates)
    best: Islands = (tuple(range(count)),)
    widest = GAP
    for least in sorted({rates[i][j] for i in range(count) for j in range(i)}, reverse=True):
        parts = joined(rates, least)
        within = [rates[i][j] for part in parts for i in part for j in part if i < j]
        across = [rates[i][j] for part in parts for i in part for j in range(i) if j not in part]
        if within and across and min(within) >= widest * max(across):
            best, widest = parts, min(within) / max(across)
    return best


def joined(rates: Sequence[Sequence[float]], least: float) -> Islands:
    """The parts in which every card reaches every other over pairs of at least this rate."""
    parts: list[set[int]] = []
    for card in range(len(rates)):
        near = [part for part in parts if any(rates[card][other] >= least for other in part)]
        parts = [part for part in parts if part not in near] + [{card}.union(*near)]
    return tuple(sorted(tuple(sorted(part)) for part in parts))
