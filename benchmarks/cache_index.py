"""The index of the cache with 100,000 entries: what a look-up takes, what an entry costs; and its eviction on a trace.

    python benchmarks/cache_index.py [--entries 100000] [--lookups 20000]

A real Redis on a unix socket, every write on disk before its answer, as `videoserve serve` starts it. First every kind
of answer is checked: right entries, other tenants' and absent ones, bytes; no time is printed when one is wrong.
"""

import argparse
import hashlib
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from redis import Redis

from videoserve.broker import EmbeddedRedis
from videoserve_cache.index import Index, Key, Link
from videoserve_cache.index.entry import Entry
from videoserve_cache.tiers import Limits, SharedCache
from videoserve_cache.trace.compare import accesses_of, compare
from videoserve_cache.trace.synthetic import SYNTHETIC

# Long enough to see every look-up to its end, also those that a server would have given up.
PATIENCE_S = 5.0
GIVEN_UP_S = Limits().patience_s
LARGE = 1 << 50
KINDS = ("text_emb", "img_cond", "boundary", "final_latent", "result")
PUBLISHED = {"text_emb": 200_000, "img_cond": 5_200_000, "boundary": 25_000_000}
CAPACITIES = tuple(int(gb * 1e9) for gb in (1, 2, 4, 8, 16, 32, 64))


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def key(number: int) -> Key:
    kind = KINDS[number % len(KINDS)]
    loras = (digest("lora", number % 40),) if number % 3 == 0 else ()
    model = digest("model", number % 3)
    return Key(kind=kind, digest=digest("entry", number), tenant=f"t{number % 50}", model=model, loras=loras)


def entry(number: int) -> Entry:
    about = {"dtype": "float32", "shape": [1, 16, 21, 60, 104]}
    return Entry(
        sha256=digest("bytes", number), size=1000 + number, about=about, cost_s=1.0 + number % 60, cls="E0", age_s=0.0
    )


def index(url: str) -> Index:
    return Index(Link(url, PATIENCE_S), "bench", f"bench:{os.getpid()}")


def fill(url: str, count: int) -> float:
    """Seconds; without waiting for the disk, which `published` measures."""
    with Redis.from_url(url) as redis:
        redis.config_set("appendfsync", "no")
        here, start = index(url), time.perf_counter()
        here.beat(None, 3600.0, 1e9)
        for number in range(count):
            here.commit(key(number), entry(number), {"memory": LARGE, "disk": LARGE})
        here.link.close()
        redis.config_set("appendfsync", "always")
    return time.perf_counter() - start


def check(url: str, folder: Path, count: int) -> None:
    here = index(url)
    rng = random.Random(0)
    for number in rng.sample(range(count), min(2000, count)):
        found, right = here.lookup(key(number)), entry(number)
        told = found and (found.sha256, found.size, found.about, found.cost_s, found.cls, sorted(found.here))
        if told != (right.sha256, right.size, right.about, right.cost_s, right.cls, ["disk", "memory"]):
            raise SystemExit(f"Entry {number} was looked up as {told}.")
        one = key(number)
        if here.lookup(Key(kind=one.kind, digest=one.digest, tenant="stranger", model=one.model)) is not None:
            raise SystemExit(f"Entry {number} was shown to another tenant.")
    if here.lookup(key(count)) is not None:
        raise SystemExit("An entry was found that nobody put.")
    if sum(here.stats()["entries"].values()) != count:
        raise SystemExit(f"The index counts {here.stats()['entries']} instead of {count} entries.")
    here.link.close()
    cache = opened(url, folder)
    content = os.urandom(1_000_000)
    cache.put(key(count), content, about={}, cost_s=1.0, cls="E0")
    hit = cache.get(key(count))
    if hit is None or bytes(hit.content) != content:
        raise SystemExit("What was put did not come back.")
    cache.drop("digest", key(count).digest)
    cache.close()


def opened(url: str, folder: Path) -> SharedCache:
    limits = Limits(memory_bytes=LARGE, disk_bytes=LARGE, patience_s=PATIENCE_S, shared_memory=folder / "shm")
    # Not the node of the many entries: it would find that their files are not there.
    return SharedCache.open(url, folder / "node", node="real", limits=limits, secret=b"", address=None)


def look_up(url: str, count: int, lookups: int, seed: int, answer: Connection) -> None:
    """Sends what each look-up took, in seconds; one in ten is for an entry that is not there."""
    here, rng, taken = index(url), random.Random(seed), []
    numbers = [rng.randrange(count) if rng.random() < 0.9 else count + rng.randrange(count) for _ in range(lookups)]
    keys = [(key(number), number < count) for number in numbers]
    here.lookup(keys[0][0])
    for wanted, there in keys:
        start = time.perf_counter()
        found = here.lookup(wanted)
        taken.append(time.perf_counter() - start)
        if (found is not None) != there:
            raise SystemExit(f"The entry {wanted.name} was {'not ' * there}found.")
    answer.send(taken)


def lookups_of(url: str, count: int, lookups: int, clients: int) -> tuple[list[float], float]:
    """What the look-ups of all clients took, sorted, and how many were answered in a second."""
    ends = [multiprocessing.Pipe(duplex=False) for _ in range(clients)]
    processes = [
        multiprocessing.Process(target=look_up, args=(url, count, lookups // clients, seed, there))
        for seed, (_, there) in enumerate(ends)
    ]
    start = time.perf_counter()
    for process in processes:
        process.start()
    taken = sorted(seconds for here, _ in ends for seconds in here.recv())
    rate = len(taken) / (time.perf_counter() - start)
    for process in processes:
        process.join()
    return taken, rate


def published(url: str, folder: Path, count: int) -> Iterator[tuple[str, int, list[float]]]:
    """Kind, bytes, and seconds at the median: of the put, of its commit alone, and of the get by another process."""
    cache, other, here = opened(url, folder), opened(url, folder), index(url)
    for kind, size in PUBLISHED.items():
        puts, commits, gets = [], [], []
        for turn in range(15):
            content = os.urandom(size)
            one = Key(kind=kind, digest=digest("published", kind, turn), tenant="t", model="m")
            start = time.perf_counter()
            cache.put(one, content, about={}, cost_s=1.0, cls="E0")
            puts.append(time.perf_counter() - start)
            start = time.perf_counter()
            here.commit(key(count + turn), entry(count + turn), {"disk": LARGE})
            commits.append(time.perf_counter() - start)
            start = time.perf_counter()
            hit = other.get(one)
            gets.append(time.perf_counter() - start)
            if hit is None:
                raise SystemExit(f"A {kind} that was published is not found.")
        yield kind, size, [statistics.median(taken) for taken in (puts, commits, gets)]
    for one_cache in (cache, other):
        one_cache.close()
    here.link.close()


def memory(url: str) -> int:
    with Redis.from_url(url) as redis:
        return int(redis.info("memory")["used_memory"])


def show_index(entries: int, lookups: int) -> None:
    with tempfile.TemporaryDirectory(prefix="videoserve-") as name, EmbeddedRedis(Path(name)) as redis:
        folder = Path(name)
        (folder / "shm").mkdir()
        empty = memory(redis.url)
        seconds = fill(redis.url, entries)
        held = memory(redis.url) - empty
        check(redis.url, folder, entries)
        print(f"{entries} entries, each in two tiers: {held / entries:.0f} bytes of Redis' memory each")
        print(f"commit without waiting for the disk: {1e3 * seconds / entries:.3f} ms")
        for clients in (1, 4):
            taken, rate = lookups_of(redis.url, entries, lookups, clients)
            points = "  ".join(f"p{q} {1e3 * taken[int(len(taken) * q / 100)]:.3f}" for q in (50, 90, 99))
            late = sum(seconds > GIVEN_UP_S for seconds in taken)
            worst = f"max {1e3 * taken[-1]:.3f}, {late} over {1e3 * GIVEN_UP_S:g}"
            print(f"look-up, {clients} client(s), ms: {points}  {worst}  ({rate:.0f} a second)")
        for kind, size, (put, commit, get) in published(redis.url, folder, entries):
            times = f"put {1e3 * put:.2f} ms, commit alone {1e3 * commit:.2f} ms, get elsewhere {1e3 * get:.2f} ms"
            print(f"publish {kind}, {size:,} bytes: {times}")


def show_eviction() -> None:
    start = time.perf_counter()
    accesses = accesses_of(SYNTHETIC)
    print(f"{len(accesses.all)} accesses of the synthetic trace; share of the asked seconds that is saved")
    for one in compare(accesses, CAPACITIES, ("gdsf", "lru")):
        gdsf, lru = (one.outcomes[name].total for name in ("gdsf", "lru"))
        ratio = f"{gdsf.saved_s / lru.saved_s:.2f}"
        bound = f"bound {one.most_s / gdsf.asked_s:.3f}"
        print(f"{one.capacity / 1e9:4.0f} GB  gdsf {gdsf.share:.3f}  lru {lru.share:.3f}  ratio {ratio}  {bound}")
    print(f"replayed in {time.perf_counter() - start:.1f} s")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--entries", type=int, default=100_000)
    options.add_argument("--lookups", type=int, default=20_000)
    arguments = options.parse_args()
    show_index(arguments.entries, arguments.lookups)
    show_eviction()


if __name__ == "__main__":
    main()
