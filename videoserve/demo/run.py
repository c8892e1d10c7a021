"""The demonstration: the demo model moves a photo, and the result is measured rather than believed."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from videoserve.config import Settings
from videoserve.demo.motion import Motion, expected_motion, matches, measure_motion
from videoserve.local.generate import make_job
from videoserve.local.render import render
from videoserve.media.mp4 import read_frames
from videoserve.storage.files import FileStore
from videoserve.types import Event

PICTURE = Path(__file__).parent / "pictures" / "china.jpg"
PROMPT = "the camera pans slowly to the left"
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """What was made of `picture` and whether it moves as `prompt` asks; `receipt` as with every video."""

    picture: Path
    prompt: str
    measured: Motion
    asked: Motion
    matches: bool
    receipt: dict[str, Any]

    @property
    def sentences(self) -> tuple[str, str]:
        """What was made, and what was measured in it."""
        used = self.receipt["parameters"]
        made = (
            f"The demo model made {used['num_frames']} frames of {used['width']}×{used['height']} from "
            f"{self.picture.name} and “{self.prompt}” with seed {used['seed']}, in {self.receipt['total_s']:.1f} s."
        )
        verdict = "which is what the prompt asks for" if self.matches else f"but the prompt asks for {self.asked.words}"
        return made, f"Measured in the video: {self.measured.words}, {verdict}."

    def report(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "picture": self.picture.name,
            "prompt": self.prompt,
            "matches": self.matches,
            "measured": _told(self.measured),
            "asked": _told(self.asked),
            "receipt": self.receipt,
        }


def demonstrate(
    settings: Settings, picture: Path, prompt: str, video: Path, tell: Callable[[Event], None]
) -> Demonstration:
    """Writes the mp4 to `video`, and beside it a .json with the report. ValueError for a prompt that names no motion.

    Raises ServeError for a picture that cannot be used, JobFailed when the generation fails.
    """
    asked = expected_motion(prompt)
    if asked is None:
        raise ValueError(f"The prompt {prompt!r} names no motion; say for example “zoom in” or “pan left”.")
    settings = settings.model_copy(update={"model": "demo"})
    with TemporaryDirectory(prefix="videoserve-") as folder:
        files = FileStore(Path(folder))
        job = make_job(settings, files, picture.read_bytes(), {"prompt": prompt, "seed": SEED})
        done = render(settings, files, job, tell)
        measured = measure_motion(read_frames(done.video))
        video.write_bytes(done.video.read_bytes())
    made = Demonstration(
        picture=picture,
        prompt=prompt,
        measured=measured,
        asked=asked,
        matches=matches(prompt, measured),
        receipt=done.receipt,
    )
    video.with_suffix(".json").write_text(json.dumps(made.report(), indent=2, ensure_ascii=False) + "\n")
    return made


def _told(motion: Motion) -> dict[str, Any]:
    # What was asked has no measured quality; JSON has no infinity.
    numbers = {name: round(value, 4) for name, value in asdict(motion).items() if value != float("inf")}
    return {"words": motion.words, **numbers}
