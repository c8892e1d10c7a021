"""What a replay of a trace says that a cache of some size and policy would have saved."""

import json
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from videoserve_cache.trace.accesses import Access, Accesses
from videoserve_cache.trace.bound import most_saved_s
from videoserve_cache.trace.gdsf import priority
from videoserve_cache.trace.line import Line
from videoserve_cache.trace.policies import POLICIES
from videoserve_cache.trace.replay import Outcome, Replay
from videoserve_cache.trace.synthetic import synthetic


def lines(*told: tuple[str, str] | tuple[str, str, int, float]) -> Iterable[Line]:
    for what, entry, *value in told:
        size, cost_s = value or (0, 0.0)
        yield Line.from_json(
            json.dumps({"at": 0, "what": what, "kind": "k", "entry": entry, "size": size, "cost_s": cost_s})
        )


def test_a_miss_is_worth_what_was_computed_for_it() -> None:
    found = Accesses.of(lines(("miss", "a"), ("put", "a", 10, 2.0), ("miss", "b"), ("hit", "a", 10, 2.0)))
    assert found.unvalued == 1
    assert [(access.use, access.size, access.cost_s) for access in found.all] == [
        ("ask", 10, 2.0),
        ("keep", 10, 2.0),
        ("ask", 10, 2.0),
    ]


def outcome(policy: str, capacity: int, accesses: Iterable[Access]) -> Outcome:
    return Replay(POLICIES[policy](), capacity).run(list(accesses))


def asks(*entries: tuple[int, int, float]) -> list[Access]:
    return [Access("ask", entry, "k", size, cost_s) for entry, size, cost_s in entries]


def test_policies_part_where_they_should() -> None:
    cheap, dear, fresh = (0, 10, 1.0), (1, 10, 9.0), (2, 10, 1.0)
    # Two fit. The dear one is the oldest when a third comes: only who looks at seconds keeps it.
    trace = asks(dear, cheap, fresh, dear)
    assert {name: outcome(name, 20, trace).total.hits for name in POLICIES} == {
        "gdsf": 1,
        "lru": 0,
        "lfu": 0,
        "fifo": 0,
    }
    often = asks(cheap, cheap, dear, fresh, cheap)
    hits = {name: outcome(name, 20, often).total.hits for name in POLICIES}
    assert hits == {"gdsf": 1, "lru": 1, "lfu": 2, "fifo": 1}
    used = asks(cheap, dear, cheap, fresh, cheap)
    assert outcome("fifo", 20, used).total.hits == 1
    assert outcome("lru", 20, used).total.hits == 2


def test_what_was_popular_once_ages() -> None:
    old = asks(*[(0, 10, 5.0)] * 4)
    new = [access for turn in range(40) for access in asks((1 + turn % 2, 10, 1.0))]
    late = outcome("gdsf", 20, [*old, *new, *new])
    # Without the floor the old one would stand at 20 a byte for ever, and the two new ones push each other out.
    assert late.total.hits > 3 + 30


def test_what_is_too_large_never_comes_and_what_is_kept_unasked_is_there() -> None:
    one = (0, 10, 1.0)
    assert outcome("lru", 9, asks(one, one)).total.hits == 0
    kept = [Access("keep", 0, "k", 10, 1.0), *asks(one)]
    assert outcome("lru", 20, kept).total == outcome("gdsf", 20, kept).total
    assert outcome("lru", 20, kept).total.share == 1.0


class Plain:
    """GDSF as it is written down: every entry looked at for each eviction."""

    def __init__(self, capacity: int):
        self.capacity, self.floor = capacity, 0.0
        self.kept: dict[int, tuple[float, int, int, int]] = {}

    def ask(self, entry: int, size: int, cost_s: float, now: int) -> bool:
        hit = entry in self.kept
        freq = self.kept[entry][3] + 1 if hit else 1
        rank = priority(self.floor, freq, cost_s, size)
        while not hit and sum(kept[2] for kept in self.kept.values()) + size > self.capacity:
            victim = min(self.kept, key=lambda entry: self.kept[entry][:2])
            self.floor = max(self.floor, self.kept.pop(victim)[0])
        self.kept[entry] = (rank, now, size, freq)
        return hit


@given(st.integers(0, 2**32), st.integers(20, 200))
def test_the_replay_is_gdsf_as_it_is_written_down(seed: int, capacity: int) -> None:
    rng = random.Random(seed)
    values = [(entry, rng.randrange(1, 20), rng.choice([0.5, 1.0, 7.0])) for entry in range(30)]
    trace = asks(*(values[int(rng.paretovariate(0.7)) % 30] for _ in range(200)))
    plain = Plain(capacity)
    hits = sum(plain.ask(a.entry, a.size, a.cost_s, now) for now, a in enumerate(trace, start=1))
    assert outcome("gdsf", capacity, trace).total.hits == hits


@given(st.integers(0, 2**32), st.integers(10, 100))
def test_no_policy_saves_more_than_the_bound(seed: int, capacity: int) -> None:
    rng = random.Random(seed)
    values = [(entry, rng.randrange(1, 20), rng.choice([0.5, 1.0, 7.0])) for entry in range(20)]
    trace = asks(*(rng.choice(values) for _ in range(100)))
    most = most_saved_s(trace, capacity)
    for name in POLICIES:
        ended = outcome(name, capacity, trace)
        assert ended.total.saved_s <= most + 1e-9
        assert ended.peak_bytes <= capacity
    everything = sum(size for _, size, _ in values)
    assert outcome("gdsf", everything, trace).total.saved_s == pytest.approx(most_saved_s(trace, 10**9))


@pytest.fixture(scope="module")
def shipped() -> list[Line]:
    return list(synthetic(requests=6000))


def test_the_synthetic_trace_is_always_the_same(shipped: list[Line]) -> None:
    again = synthetic(requests=6000)
    assert all(one == other for one, other in zip(again, shipped, strict=True))
    assert [line.entry for line in synthetic(requests=50, seed=1)] != [line.entry for line in shipped[:50]]


def test_the_synthetic_trace_is_a_mix(shipped: list[Line]) -> None:
    found = Accesses.of(shipped)
    assert found.unvalued == 0
    assert {access.kind for access in found.all} == {"text_emb", "img_cond", "boundary", "final_latent", "result"}
    asked: dict[int, int] = {}
    for access in found.all:
        if access.use == "ask" and access.kind == "img_cond":
            asked[access.entry] = asked.get(access.entry, 0) + 1
    once = sum(count == 1 for count in asked.values())
    assert once > 0.4 * len(asked)
    assert max(asked.values()) > 20


def test_gdsf_saves_more_than_lru_on_it(shipped: list[Line]) -> None:
    accesses = Accesses.of(shipped).all
    for capacity in (2 * 10**9, 16 * 10**9):
        gdsf, lru = (outcome(name, capacity, accesses).total for name in ("gdsf", "lru"))
        assert gdsf.share > 1.05 * lru.share
        assert gdsf.asked_s == lru.asked_s
