"""The trace that ships with the package: requests as several tenants of a video service make them, from a seed.

Popularity is Zipf's, of pictures, of prompts and of the presets of a page; nearly half of the pictures come once and
never again; now and then everybody wants the same; people ask again for what they have made, lately or long ago: as it
was, with another decode, with another adapter on the low-noise expert, or after a crash.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Final

from videoserve_cache.trace.job import SHAPES, Job
from videoserve_cache.trace.line import ENTRY_DIGITS, Line

SYNTHETIC: Final = "synthetic"
REQUESTS: Final = 18_000
PICTURES: Final = 3000
PROMPTS: Final = 800
PRESETS: Final = 400
PRESET: Final = 0.1
ONE_OFF: Final = 0.45
EVERY_S: Final = 4.0
BURST_CHANCE: Final = 0.004
BURST_SHARE: Final = 0.6
BURST_SEEDS: Final = 4
SESSION: Final = 0.3
ADAPTERS: Final = 40


def synthetic(requests: int = REQUESTS, seed: int = 0) -> Iterator[Line]:
    """The same lines for the same arguments; about 100,000 for 18,000 requests."""
    return Synthetic(seed).requests(requests)


class Synthetic:
    """Requests one after the other; a line is what a cache without limits would have recorded."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)
        self._pictures = zipf(PICTURES)
        self._prompts = zipf(PROMPTS)
        self._presets = zipf(PRESETS)
        self._kept: dict[tuple[str, str], Line] = {}
        self._jobs: list[Job] = []
        self._at = 0.0
        self._burst: Job | None = None
        self._burst_left = 0

    def requests(self, count: int) -> Iterator[Line]:
        yield from self._generate(self._popular())
        for _ in range(1, count):
            self._at += self._random.expovariate(1 / EVERY_S)
            yield from self._request(self._random.random())

    def _request(self, turn: float) -> Iterator[Line]:
        if turn < 0.74:
            yield from self._generate(self._new())
        elif turn < 0.88:
            yield self._ask("result", self._earlier().whole)
        elif turn < 0.92:
            job = self._earlier()
            yield self._ask("final_latent", job.whole)
            yield self._result(replace(job, after=f"{job.after}, decoded {self._random.random()}"))
        elif turn < 0.98:
            job = replace(self._earlier(), after=f"adapter {self._random.randrange(ADAPTERS)}")
            yield from self._go_on(job, "expert")
        else:
            job = replace(self._earlier(), after=f"retried {self._random.random()}")
            yield from self._go_on(job, "late")

    def _generate(self, job: Job) -> Iterator[Line]:
        known = self._ask("result", job.whole)
        yield known
        if known.what == "hit":
            return
        for text in (job.prompt, "negative prompt"):
            yield from self._need("text_emb", text, 8192 * self._random.randrange(12, 120), 0.12)
        yield from self._need("img_cond", job.conditioning, int(job.shape.latents * 0.625), job.shape.vae_s)
        for place, done in (("expert", 0.5), ("late", 0.8)):
            cost_s = job.shape.denoise_s * done
            yield self._put("boundary", f"{job.checkpoint}, {place}", 3 * job.shape.latents, cost_s)
        yield from self._finish(job)

    def _go_on(self, job: Job, place: str) -> Iterator[Line]:
        known = self._ask("result", job.whole)
        yield known
        if known.what == "miss":
            yield self._ask("boundary", f"{job.checkpoint}, {place}")
            yield from self._finish(job)

    def _finish(self, job: Job) -> Iterator[Line]:
        self._jobs.append(job)
        yield self._put("final_latent", job.whole, job.shape.latents, job.shape.denoise_s)
        yield self._result(job)

    def _result(self, job: Job) -> Line:
        size = int(job.shape.latents * self._random.uniform(0.15, 0.7))
        return self._put("result", job.whole, size, job.shape.denoise_s + 3 * job.shape.vae_s)

    def _need(self, kind: str, name: str, size: int, cost_s: float) -> Iterator[Line]:
        known = self._ask(kind, name)
        yield known
        if known.what == "miss":
            yield self._put(kind, name, size, cost_s)

    def _ask(self, kind: str, name: str) -> Line:
        if (kind, name) in self._kept:
            return replace(self._kept[kind, name], at=self._at, what="hit")
        return Line(at=self._at, what="miss", kind=kind, entry=entry(kind, name))

    def _put(self, kind: str, name: str, size: int, cost_s: float) -> Line:
        line = Line(at=self._at, what="put", kind=kind, entry=entry(kind, name), size=size, cost_s=cost_s)
        self._kept[kind, name] = line
        return line

    def _new(self) -> Job:
        if self._burst is None and self._random.random() < BURST_CHANCE:
            self._burst, self._burst_left = self._popular(), self._random.randrange(50, 300)
        if self._burst is not None:
            burst, self._burst_left = self._burst, self._burst_left - 1
            if self._burst_left == 0:
                self._burst = None
            if self._random.random() < BURST_SHARE:
                return replace(burst, seed=self._random.randrange(BURST_SEEDS))
        if self._random.random() < PRESET:
            (rank,) = self._random.choices(range(PRESETS), cum_weights=self._presets)
            return Job(f"picture {rank}", f"prompt {rank}", 0, SHAPES[rank % len(SHAPES)])
        if self._random.random() < SESSION:
            # The same picture and prompt until the seed pleases.
            return replace(self._earlier(), seed=self._random.getrandbits(31), after="")
        return self._popular()

    def _popular(self) -> Job:
        picture, prompt = self._named("picture", self._pictures), self._named("prompt", self._prompts)
        (shape,) = self._random.choices(SHAPES, (45, 40, 15))
        return Job(picture, prompt, self._random.getrandbits(31), shape)

    def _named(self, what: str, weights: list[float]) -> str:
        if self._random.random() < ONE_OFF:
            return f"{what} {self._random.random()}"
        (rank,) = self._random.choices(range(len(weights)), cum_weights=weights)
        return f"{what} {rank}"

    def _earlier(self) -> Job:
        """One of any age: as likely from the last ten as from the ninety before them."""
        back = len(self._jobs) ** self._random.random()
        return self._jobs[-min(len(self._jobs), int(back))]


def zipf(count: int) -> list[float]:
    """Weights of 1 / rank, added up."""
    return list(accumulate(1 / rank for rank in range(1, count + 1)))


def entry(kind: str, name: str) -> str:
    return hashlib.sha256(f"{kind}, {name}".encode()).hexdigest()[:ENTRY_DIGITS]
