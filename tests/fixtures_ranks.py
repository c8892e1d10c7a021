"""Ranks for tests: one set of processes a size, kept for the whole session."""

from collections.abc import Callable, Iterator

import pytest

from tests.ranks import Ranks


@pytest.fixture(scope="session")
def ranks_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Ranks]]:
    """ranks_of(4) -> four ranks that live on; new ones in place of those that a test has broken."""
    started: dict[int, Ranks] = {}

    def ranks(size: int) -> Ranks:
        if size not in started or not started[size].alive:
            started[size] = Ranks(size, tmp_path_factory.mktemp(f"ranks{size}"))
        return started[size]

    yield ranks
    for group in started.values():
        group.close()


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
