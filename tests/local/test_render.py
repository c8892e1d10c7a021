"""A video without a server."""

import io
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from videoserve.config import Settings
from videoserve.local.generate import make_job
from videoserve.local.render import render
from videoserve.storage.files import FileStore
from videoserve.types import Event


def test_settings_for_the_ranks_of_a_server_do_not_stand_in_its_way(
    tiny_model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = Settings(model=str(tiny_model_dir("wan22-ti2v")), data=tmp_path, device="cpu", ranks=2, parallel="u2")
    files = FileStore(tmp_path / "files")
    picture = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").resize((48, 32)).save(picture, "PNG")
    fields = {"prompt": "pan left", "width": 48, "height": 32, "num_frames": 5, "num_inference_steps": 2}
    events: list[Event] = []
    done = render(settings, files, make_job(settings, files, picture.getvalue(), fields), events.append)
    assert done.video.stat().st_size > 0
    assert (done.receipt["parallel"], done.receipt["steps"]) == ("one", "RR")
    assert [event.kind for event in events][-1] == "done"
