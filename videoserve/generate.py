"""One video without a server: the same plan and the same engine, in this process."""

import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from videoserve.card import ModelCard, resolve_model
from videoserve.config import Settings
from videoserve.errors import JobFailed
from videoserve.files import FileStore
from videoserve.media.image import normalise
from videoserve.plan import plan_video
from videoserve.types import Event, Job, Output, VideoPlan, VideoRequest
from videoserve.video.engine import VideoEngine
from videoserve.video.quiet import quiet

# The range of seeds that are picked when none is asked for: short enough to be typed again.
RANDOM_SEEDS = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A finished video: its plan, its receipt, and the mp4 in `files`."""

    plan: VideoPlan
    receipt: dict[str, Any]
    video: Path


def make_job(settings: Settings, files: FileStore, picture: bytes, fields: dict[str, Any]) -> Job:
    """Plans a video from the bytes of a picture and the fields of VideoRequest.

    Raises ServeError for what cannot be done, ValueError for a model that cannot be used.
    """
    card = ModelCard.read(resolve_model(settings.model))
    image = normalise(picture, pixel_limit=settings.image_pixels, side_min=settings.image_side_min)
    request = VideoRequest(image=files.put(image.png), image_notes=image.adjustments, **fields)
    plan = plan_video(request, card, (image.width, image.height), random_seed=secrets.randbelow(RANDOM_SEEDS))
    return Job(
        id=f"video_{uuid.uuid4().hex}",
        kind="video",
        tenant="local",
        request=request.to_dict(),
        plan=plan.to_dict(),
        created_at=time.time(),
    )


def run_job(settings: Settings, files: FileStore, job: Job, tell: Callable[[Event], None]) -> Generated:
    """Computes `job` to its end; `tell` gets its events. Raises JobFailed, or ValueError for an unusable device."""
    quiet()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    engine = VideoEngine(settings, files, resolve_model(settings.model))
    engine.load()
    ending: list[Event] = []

    def emit(event: Event) -> None:
        if event.kind in ("done", "failed"):
            ending.append(event)
        tell(event)

    engine.admit(job, None)
    while engine.step(emit):
        pass
    engine.close()
    data = ending[-1].data
    if ending[-1].kind == "failed":
        raise JobFailed(data["code"], data["message"])
    video = Output.from_dict(data["outputs"]["video"])
    return Generated(plan=VideoPlan.from_dict(job.plan), receipt=data["receipt"], video=files.path(video.sha256))
