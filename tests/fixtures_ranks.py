"""Ranks for tests: one set of processes a size, kept for the whole session."""

from collections.abc import Callable, Iterator

import pytest

from tests.ranks import Ranks, let_go


@pytest.fixture(scope="session")
def kept_ranks() -> Iterator[dict[int, Ranks]]:
    """The ranks that were started, by their number."""
    started: dict[int, Ranks] = {}
    yield started
    for group in started.values():
        group.close()


@pytest.fixture(scope="module")
def ranks_of(
    kept_ranks: dict[int, Ranks], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], Ranks]]:
    """ranks_of(4) -> four ranks that live on; new ones in place of those that a test has broken."""
    asked: set[int] = set()

    def ranks(size: int) -> Ranks:
        asked.add(size)
        if size not in kept_ranks or not kept_ranks[size].alive:
            kept_ranks[size] = Ranks(size, tmp_path_factory.mktemp(f"ranks{size}"))
        return kept_ranks[size]

    yield ranks
    # A hundred groups wake a hundred times a second each, for nobody.
    for size in asked:
        if kept_ranks[size].alive:
            kept_ranks[size](let_go)


@pytest.fixture
def fresh_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Ranks]]:
    """fresh_ranks(3) -> ranks for one test alone, which may kill them."""
    started: list[Ranks] = []

    def ranks(size: int) -> Ranks:
        started.append(Ranks(size, tmp_path_factory.mktemp("fresh")))
        return started[-1]

    yield ranks
    for group in started:
        group.close()
