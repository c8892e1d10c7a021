"""A video without a server, by one process and by several."""

import io
import sys
import threading
from collections.abc import Callable
from multiprocessing import active_children, get_context
from pathlib import Path

import av
import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image

from videoserve.config import Settings
from videoserve.errors import JobFailed
from videoserve.local.generate import make_job
from videoserve.local.ranks import answer_beside, led
from videoserve.local.render import render
from videoserve.storage.files import FileStore
from videoserve.types import Event


def frames_of(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def test_several_ranks_make_the_video_of_one(tiny_model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    files = FileStore(tmp_path / "files")
    picture = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").resize((48, 32)).save(picture, "PNG")
    fields = {"prompt": "pan left", "width": 48, "height": 32, "num_frames": 5, "num_inference_steps": 2, "seed": 1}
    before = set(active_children())
    clips = []
    for ranks, parallel, name in ((1, "auto", "one"), (2, "u2", "u2")):
        settings = Settings(
            model=str(tiny_model_dir("wan22-ti2v")), data=tmp_path, device="cpu", ranks=ranks, parallel=parallel
        )
        events: list[Event] = []
        done = render(settings, files, make_job(settings, files, picture.getvalue(), fields), events.append)
        assert (done.receipt["parallel"], done.receipt["steps"]) == (name, "RR")
        assert [event.kind for event in events][-1] == "done"
        clips.append(frames_of(done.video))
    assert clips[0].shape == clips[1].shape == (5, 32, 48, 3)
    assert np.abs(clips[0].astype(int) - clips[1]).max() <= 2
    assert set(active_children()) <= before
    assert not dist.is_initialized()


def test_a_rank_that_ends_too_early_is_told() -> None:
    others = [get_context("spawn").Process(target=sys.exit, args=(code,)) for code in (0, 3)]
    for process in others:
        process.start()
    end = threading.Event()
    with pytest.raises(JobFailed, match="Rank 2 ended with 3 before the video was done"):
        answer_beside(others, end.wait)
    end.set()
    # Those that end as they should are no loss.
    assert answer_beside(others[:1], lambda: 5) == 5


def test_what_rank_0_raises_comes_out() -> None:
    def fail() -> None:
        raise JobFailed("numerical_error", "Step 3 gave NaN.")

    with pytest.raises(JobFailed, match="Step 3"):
        answer_beside([], fail)


def test_a_device_for_every_rank_or_none_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="'cuda:1' is not here"):
        led(Settings(data=tmp_path, device="cuda", ranks=2), lambda own: None)
