"""GreedyDual-Size-Frequency (Cherkasova, 1998): what a byte is worth that an entry takes."""


def priority(floor: float, freq: int, cost_s: float, size: int) -> float:
    """The lowest goes first. `floor` is the highest priority evicted so far, so that what was popular once ages.

    The scripts of the index compute the same number.
    """
    return floor + freq * cost_s / size
