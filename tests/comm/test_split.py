"""Splits are pure functions of length and parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from videoserve_kernels.comm.split import slices, split


@given(st.integers(0, 10_000), st.integers(1, 16))
def test_every_item_goes_to_one_part_and_parts_differ_by_at_most_one(length: int, parts: int) -> None:
    sizes = split(length, parts)
    assert len(sizes) == parts
    assert sum(sizes) == length
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)
    covered = [item for share in slices(sizes) for item in range(length)[share]]
    assert covered == list(range(length))


def test_fewer_items_than_parts_leave_the_last_ones_empty() -> None:
    assert split(3, 5) == (1, 1, 1, 0, 0)


@pytest.mark.parametrize(("length", "parts"), [(-1, 2), (5, 0)])
def test_what_cannot_be_split_is_named(length: int, parts: int) -> None:
    with pytest.raises(ValueError, match=f"length of {length} into {parts} parts"):
        split(length, parts)
