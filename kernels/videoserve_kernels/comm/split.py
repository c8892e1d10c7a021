"""How a length is dealt out to ranks: a pure function, so that no rank ever has to be told another one's size."""

from itertools import accumulate, pairwise


def split(length: int, parts: int) -> tuple[int, ...]:
    """Sizes of `parts` shares of `length` in order; they differ by at most one, the larger ones come first.

    With fewer items than parts the last shares are 0. ValueError for a negative length or for no parts.
    """
    if length < 0 or parts < 1:
        raise ValueError(f"Cannot split a length of {length} into {parts} parts: 0 or more into 1 or more is allowed.")
    share, left = divmod(length, parts)
    return tuple(share + 1 if part < left else share for part in range(parts))


def slices(sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """Where each of the consecutive shares begins and ends."""
    return tuple(slice(begin, end) for begin, end in pairwise(accumulate(sizes, initial=0)))
