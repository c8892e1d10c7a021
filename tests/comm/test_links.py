"""Shares of links, worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from videoserve_kernels.comm.links import Box, fair_shares


def test_one_stream_has_the_link_and_two_halve_it() -> None:
    box = Box(ranks=3, card=10.0)
    assert box.rates([(0, 1)]) == [10.0]
    assert box.rates([(0, 1), (0, 2)]) == [5.0, 5.0]
    # Each direction has a capacity of its own.
    assert box.rates([(0, 1), (1, 0)]) == [10.0, 10.0]
    assert box.rates([]) == []


def test_what_one_cannot_use_the_others_get() -> None:
    # Card 2 takes from three, so 0 -> 2 is held to a third and 0 -> 1 gets the rest of card 0's link.
    rates = Box(ranks=4, card=9.0).rates([(0, 1), (0, 2), (1, 2), (3, 2)])
    assert rates == pytest.approx([6.0, 3.0, 3.0, 3.0])


def test_streams_between_islands_share_the_trunk() -> None:
    box = Box(ranks=4, card=10.0, island=2, trunk=8.0)
    assert box.rates([(0, 2), (1, 3), (2, 0), (0, 1)]) == pytest.approx([4.0, 4.0, 8.0, 6.0])


def test_crossing_streams_cost_the_card_its_rate() -> None:
    box = Box(ranks=4, card=10.0, collapse=0.4)
    neighbours = [(rank, (rank + 1) % 4) for rank in range(4)]
    everybody = [(i, j) for i in range(4) for j in range(4) if i != j]
    assert sum(box.rates(neighbours)) == pytest.approx(40.0)
    assert sum(box.rates(everybody)) == pytest.approx(16.0)


def test_islands_need_not_be_neighbours_and_ranks_may_take_any_cards() -> None:
    box = Box(ranks=4, card=10.0, trunk=8.0, homes=(0, 1, 0, 1))
    assert box.rates([(0, 2), (1, 3)]) == pytest.approx([10.0, 10.0])
    assert box.rates([(0, 1), (2, 3)]) == pytest.approx([4.0, 4.0])
    # The same cards with the islands side by side, and three of them only.
    assert box.taking((0, 2, 1, 3)).homes == (0, 0, 1, 1)
    assert Box(ranks=4, card=10.0, island=2, trunk=8.0).taking((3, 0, 1)).rates([(0, 1), (1, 2)]) == [8.0, 10.0]


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True), max_size=12))
def test_no_link_gives_more_than_it_has_and_every_stream_meets_a_full_link(paths: list[list[int]]) -> None:
    links = [[("link", number, 0) for number in path] for path in paths]
    capacities = {("link", number, 0): 1.0 + number for number in range(6)}
    shares = fair_shares(links, capacities)
    used = {link: sum(share for share, path in zip(shares, links, strict=True) if link in path) for link in capacities}
    assert all(used[link] <= capacities[link] * (1 + 1e-9) for link in capacities)
    full = {link for link in capacities if used[link] >= capacities[link] * (1 - 1e-9)}
    for share, path in zip(shares, links, strict=True):
        # Max-min: on one of its full links nobody has more than this stream.
        most = {
            link: max(s for s, other in zip(shares, links, strict=True) if link in other) for link in full & set(path)
        }
        assert any(share >= value * (1 - 1e-9) for value in most.values())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"collapse": 0.0}, "collapse is 0.0; more than 0"),
        ({"island": 3}, "4 cards do not fill islands of 3"),
        ({"latency": -1.0}, "latency -1.0 s: one card or more, rates above 0"),
        ({"trunk": 0.0}, "trunks at 0.0"),
        ({"homes": (0, 1)}, r"homes are \(0, 1\) for 4 cards"),
        ({"homes": (0, 0, 1, 1), "island": 2}, "with island 2"),
    ],
)
def test_a_box_that_cannot_be_is_refused(wrong: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Box(**({"ranks": 4, "card": 1.0} | wrong))
