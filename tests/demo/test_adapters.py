"""What the shipped adapters do to the shipped model's videos, measured: each has its effect and not the other's."""

from collections.abc import Callable
from typing import Any

import pytest

from videoserve.config import Settings
from videoserve.demo.rings import turns
from videoserve.demo.sepia import sepia_shares
from videoserve.local.adapters import LocalAdapters
from videoserve.local.generate import make_job
from videoserve.media.mp4 import read_frames
from videoserve.planning.card import DEMO, resolve_model
from videoserve.storage.files import FileStore
from videoserve.types import Event
from videoserve.video.engine import VideoEngine

pytestmark = pytest.mark.slow
# How far the inner rings turn, inner first, in radians; and how sepia the frames behind the middle are.
Effects = tuple[float, float, float]
Measure = Callable[..., Effects]
# It asks for neither effect: the adapters alone make them.
FIELDS: dict[str, Any] = {"prompt": "static", "width": 96, "height": 96, "num_inference_steps": 10, "seed": 7}
PICTURE = DEMO.parent / "pictures" / "coffee.jpg"


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Measure:
    """measure(swirl=1.0) -> the effects in a video with that adapter at that scale."""
    settings = Settings(data=tmp_path_factory.mktemp("data"), model="demo", device="cpu", preview_steps=0)
    files, adapters = FileStore(settings.data / "files"), LocalAdapters(settings)
    engine = VideoEngine(settings, files, resolve_model("demo"))
    engine.load(warm=False)

    def make(**scales: float) -> Effects:
        loras = tuple(adapters.ask(name.replace("_", "-"), scale) for name, scale in scales.items())
        engine.admit(make_job(settings, files, PICTURE.read_bytes(), FIELDS | {"loras": loras}), None)
        events: list[Event] = []
        while engine.step(events.append):
            pass
        frames = read_frames(files.path(events[-1].data["outputs"]["video"]["sha256"]))
        inner, outer, *_ = turns(frames)
        return inner, outer, float(sepia_shares(frames)[8:14].mean())

    return make


def test_each_adapter_has_its_effect_and_none_of_the_other(measure: Measure) -> None:
    """Seen: swirl 1.20 and 0.85, half of it 0.35, sepia-fade 0.32; both 0.85, 0.65 and 0.45; none 0.00 and 0.02."""
    inner, outer, sepia = measure()
    assert max(abs(inner), abs(outer)) <= 0.1
    assert abs(sepia) < 0.08
    inner, outer, sepia = measure(swirl=1.0)
    assert inner > 0.8
    assert 0.5 < outer < inner - 0.1
    assert abs(sepia) < 0.15
    half, _, _ = measure(swirl=0.5)
    assert 0.2 <= half < inner - 0.3
    inner, outer, sepia = measure(sepia_fade=1.0)
    assert max(abs(inner), abs(outer)) <= 0.1
    assert sepia > 0.22
    inner, outer, both = measure(swirl=1.0, sepia_fade=1.0)
    assert inner > 0.5
    assert outer > 0.35
    assert both > 0.25
