"""Engines over tiny models: real classes, made-up weights, a file store in a temporary folder."""

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from videoserve.config import Settings
from videoserve.planning.card import ModelCard
from videoserve.planning.plan import plan_video
from videoserve.storage.files import FileStore
from videoserve.storage.open_cache import GIB
from videoserve.types import Event, Job, VideoRequest
from videoserve.video.denoise import finished
from videoserve.video.engine import VideoEngine
from videoserve_cache.tiers import Limits, SharedCache

WIDTH, HEIGHT = 48, 32
EULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0}


class Studio:
    """A model directory, a file store, and what it takes to run jobs on engines over them."""

    def __init__(self, directory: Path, data: Path) -> None:
        self.directory = directory
        self.data = data
        self.files = FileStore(data / "files")
        self.card = ModelCard.read(directory)
        self._shared: dict[tuple[tuple[str, Any], ...], VideoEngine] = {}

    def shared(self, **settings: Any) -> VideoEngine:
        """An idle engine that tests share, as jobs share a server; for tests that do not tamper with it."""
        key = tuple(sorted(settings.items()))
        if key not in self._shared:
            self._shared[key] = self.engine(**settings)
        engine = self._shared[key]
        for run in engine._schedule:
            engine.cancel(run.id)
        return engine

    def settings(self, **settings: Any) -> Settings:
        return Settings(**({"data": self.data} | settings))

    def engine(self, **settings: Any) -> VideoEngine:
        """A loaded engine; jobs go alone and nothing is measured unless `batch` says otherwise."""
        chosen = {"batch": 1, "device": "cpu", "checkpoint_steps": 0, "preview_steps": 0, **settings}
        engine = VideoEngine(self.settings(**chosen), self.files, self.directory)
        engine.load()
        return engine

    def latents(self, engine: VideoEngine, job: Job) -> Tensor:
        """The last latents of a job, [1, C, F, H, W]; cancels it."""
        engine.admit(job, None)
        (run,) = list(engine._schedule)
        while run.stage in ("encode", "denoise"):
            engine.step(lambda event: None)
        found = finished(run)
        engine.cancel(job.id)
        return found

    def picture(self, pixels: np.ndarray[Any, Any] | int = 0) -> str:
        """Stores a picture, from pixels or from a seed, and returns its digest."""
        if isinstance(pixels, int):
            coarse = np.random.default_rng(pixels).integers(0, 256, (4, 6, 3), dtype=np.uint8)
            pixels = np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG")
        return self.files.put(out.getvalue())

    def image(self, sha: str) -> Image.Image:
        return Image.open(io.BytesIO(self.files.read(sha))).convert("RGB")

    def job(
        self,
        job_id: str = "job",
        *,
        created_at: float = 0.0,
        priority: int = 0,
        deadline: float | None = None,
        **request: Any,
    ) -> Job:
        """A job as the API would make it; fields of VideoRequest by keyword."""
        request = {
            "prompt": "pan left",
            "seed": 7,
            "image": self.picture(),
            "width": WIDTH,
            "height": HEIGHT,
            **request,
        }
        asked = VideoRequest(**request)
        plan = plan_video(asked, self.card, self.image(asked.image).size, random_seed=0)
        return Job(
            id=job_id,
            kind="video",
            tenant="t",
            request=asked.to_dict(),
            plan=json.loads(json.dumps(plan.to_dict())),
            created_at=created_at,
            priority=priority,
            deadline=deadline,
        )

    def result(self, events: list[Event], job_id: str = "job") -> str:
        """The digest of the mp4 of a job that must have ended well."""
        last = [event for event in events if event.job_id == job_id][-1]
        assert last.kind == "done", last.data
        sha: str = last.data["outputs"]["video"]["sha256"]
        return sha

    def solo(self, job: Job) -> str:
        """The digest of the mp4 of a job that has an engine to itself."""
        engine = self.shared()
        engine.admit(job, None)
        return self.result(drain(engine), job.id)


def drain(engine: VideoEngine) -> list[Event]:
    """Steps until nothing is left, and returns what was told."""
    events: list[Event] = []
    while engine.step(events.append):
        pass
    return events


@pytest.fixture
def run_all() -> Callable[[VideoEngine], list[Event]]:
    """run_all(engine): steps until nothing is left, and returns what was told."""
    return drain


@pytest.fixture(scope="session")
def described_model(
    tiny_model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """described_model(layout, solver="unipc" | "euler"): a tiny directory that says what its defaults are."""
    made: dict[tuple[str, str], Path] = {}

    def model(layout: str, solver: str = "unipc") -> Path:
        key = layout, solver
        if key not in made:
            made[key] = tmp_path_factory.mktemp(f"{layout}-{solver}") / "tiny"
            shutil.copytree(tiny_model_dir(layout), made[key])
            about = {"name": "tiny", "sizes": [[WIDTH, HEIGHT]], "num_frames": 5, "fps": 8, "steps": 3}
            about |= {"guidance": 2.0, "text_length": 64}
            (made[key] / "videoserve.json").write_text(json.dumps(about))
            if solver == "euler":
                (made[key] / "scheduler" / "scheduler_config.json").write_text(json.dumps(EULER))
        return made[key]

    return model


@pytest.fixture(scope="session")
def studio(described_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Studio]:
    """studio(layout="wan22-ti2v", solver="unipc") -> the Studio over that tiny model."""
    open_ones: dict[Path, Studio] = {}

    def get(layout: str = "wan22-ti2v", solver: str = "unipc") -> Studio:
        directory = described_model(layout, solver)
        if directory not in open_ones:
            open_ones[directory] = Studio(directory, tmp_path_factory.mktemp("data"))
        return open_ones[directory]

    return get


@pytest.fixture
def demo_studio(demo_model_dir: Path, tmp_path: Path) -> Studio:
    return Studio(demo_model_dir, tmp_path)


@pytest.fixture(scope="session")
def tiny_studio(studio: Callable[..., Studio]) -> Studio:
    """The 2.2 TI2V layout, the cheapest."""
    return studio()


@pytest.fixture
def open_cache(redis_url: str, tmp_path: Path) -> Iterator[Callable[..., SharedCache]]:
    """open_cache(node="n", **limits) -> a SharedCache of a node of its own folder; closed with the test."""
    opened = []

    def open_one(node: str = "n", **limits: Any) -> SharedCache:
        shared_memory = tmp_path / "shm"
        shared_memory.mkdir(exist_ok=True)
        chosen = Limits(memory_bytes=GIB, disk_bytes=GIB, shared_memory=shared_memory, patience_s=5.0, **limits)
        cache = SharedCache.open(redis_url, tmp_path / node, node=node, limits=chosen, secret=b"s", address=None)
        opened.append(cache)
        return cache

    yield open_one
    for cache in opened:
        cache.close()
