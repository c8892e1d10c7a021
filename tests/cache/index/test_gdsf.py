"""The replayer and the index evict the same entries: they have one arithmetic."""

import random

import pytest

from videoserve_cache.index.entry import Entry
from videoserve_cache.index.index import Index
from videoserve_cache.index.key import Key
from videoserve_cache.index.link import Link
from videoserve_cache.index.touches import Told
from videoserve_cache.trace.accesses import Access
from videoserve_cache.trace.policies import Gdsf
from videoserve_cache.trace.replay import Replay

CAPACITY = 5000


def name(entry: int) -> str:
    return f"{entry:064x}"


@pytest.mark.parametrize("seed", range(3))
def test_the_index_keeps_what_the_replay_keeps(redis_url: str, seed: int) -> None:
    rng = random.Random(seed)
    link = Link(redis_url, 2.0)
    index = Index(link, "a", "a:1")
    replay = Replay(Gdsf(), CAPACITY)
    values = [(rng.randrange(100, 1500), rng.uniform(0.1, 60.0)) for _ in range(60)]
    for _ in range(250):
        entry = min(int(rng.paretovariate(0.5)) - 1, 59)
        size, cost_s = values[entry]
        kept = name(entry) in set(index.residents("disk"))
        if kept:
            told = Told()
            told.uses[name(entry)] += 1
            index.touch(told, [], 10.0)
        else:
            key = Key(kind="result", digest=name(entry), tenant="t", model="m")
            told_entry = Entry(sha256=name(entry), size=size, about={}, cost_s=cost_s, cls="E0", age_s=0.0)
            assert index.commit(key, told_entry, {"disk": CAPACITY})[0] == ["disk"]
        replay.run([Access("ask", entry, "result", size, cost_s)])
        assert sorted(index.residents("disk")) == sorted(map(name, replay.kept()))
    assert index.stats()["counts"]["evicted:result:disk"] == replay.outcome.evictions > 20
    assert replay.outcome.total.hits > 50
    link.close()
