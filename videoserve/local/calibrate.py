"""Calibrations of the step cache made at once, in this process, instead of by the first requests of a kind."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from videoserve.config import Settings
from videoserve.demo.recipe.motions import sample_label
from videoserve.demo.recipe.prompts import prompt_for
from videoserve.errors import JobFailed
from videoserve.local.generate import make_job
from videoserve.planning.card import DEMO, resolve_model
from videoserve.storage.files import FileStore
from videoserve.types import Event, Job
from videoserve.video.engine import VideoEngine
from videoserve.video.quiet import quiet
from videoserve_cache.steps.request import CacheRequest
from videoserve_cache.steps.targets import LEVELS

PICTURES = DEMO.parent / "pictures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A number of computed steps, what such a video takes, how near it comes, and the qualities that it is for."""

    runs: int
    seconds: float
    mean_db: float
    worst_db: float
    steps: str
    qualities: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What the videos are made of: prompts and pictures in turn, each video with a seed of its own."""

    prompts: Sequence[str]
    pictures: Sequence[Path]

    @classmethod
    def of_demo(cls, count: int) -> "Material":
        """Sentences like those the demo model has learned, and the bundled pictures."""
        rng = random.Random(0)
        return cls(
            prompts=[prompt_for(sample_label(rng), rng) for _ in range(count)],
            pictures=sorted(PICTURES.glob("*.jpg")),
        )

    def videos(self, count: int) -> Iterator[tuple[str, Path, int]]:
        """(prompt, picture, seed) of so many."""
        return islice(
            ((p, i, seed) for seed, (p, i) in enumerate(zip(cycle(self.prompts), cycle(self.pictures)))), count
        )


def calibrate(
    settings: Settings, material: Material, count: int, fields: dict[str, Any], tell: Callable[[Event], None]
) -> list[Row]:
    """Generates `count` uncached videos with the fields of VideoRequest, and says what policies they give.

    Raises ServeError and JobFailed for fields that cannot be used, ValueError for an unusable model or device.
    """
    with TemporaryDirectory(prefix="videoserve-") as folder:
        files = FileStore(Path(folder))
        jobs: list[Job] = []
        for prompt, picture, seed in material.videos(count):
            jobs.append(make_job(settings, files, picture.read_bytes(), fields | {"prompt": prompt, "seed": seed}))
            # Of the size that the first picture gets, whatever shapes the others have.
            fields = fields | {"size": f"{jobs[0].plan['width']}x{jobs[0].plan['height']}"}
        quiet()
        engine = VideoEngine(settings, files, resolve_model(settings.model), calibrating=True)
        engine.load(warm=False)
        try:
            for job in jobs:
                generate(engine, job, tell)
            return rows(engine, jobs[0])
        finally:
            engine.close()


def generate(engine: VideoEngine, job: Job, tell: Callable[[Event], None]) -> None:
    failed: list[Event] = []

    def emit(event: Event) -> None:
        if event.kind == "failed":
            failed.append(event)
        tell(event)

    engine.admit(job, None)
    while engine.step(emit):
        pass
    if failed:
        raise JobFailed(failed[0].data["code"], failed[0].data["message"])


def rows(engine: VideoEngine, job: Job) -> list[Row]:
    """The curve of the calibration that videos like this job's have; made here, so that no server waits for it."""
    # The guards are those of requests for a quality: other ones, other plans.
    points = engine.curves(job).of(CacheRequest(quality="balanced").guards)
    chosen = {quality: next((p.runs for p in points if p.worst_db >= level), None) for quality, level in LEVELS.items()}
    return [
        Row(
            runs=point.runs,
            seconds=point.seconds,
            mean_db=point.mean_db,
            worst_db=point.worst_db,
            steps=point.letters,
            qualities=tuple(quality for quality, runs in chosen.items() if runs == point.runs),
        )
        for point in points
    ]
