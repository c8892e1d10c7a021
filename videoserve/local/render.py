"""One job in this process: the same engine as a worker's, without broker and leases."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from videoserve.config import Settings
from videoserve.errors import JobFailed
from videoserve.local.ranks import led
from videoserve.planning.card import resolve_model
from videoserve.storage.files import FileStore
from videoserve.types import Event, Job, Output
from videoserve.video.engine import VideoEngine
from videoserve.video.quiet import quiet


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A finished video: its receipt, and where its mp4 lies."""

    receipt: dict[str, Any]
    video: Path


def render(settings: Settings, files: FileStore, job: Job, tell: Callable[[Event], None]) -> Rendered:
    """Computes `job` to its end; `tell` gets its events, in a thread where several ranks share the work.

    Raises JobFailed, or ValueError for an unusable device.
    """
    quiet()
    if settings.ranks == 1:
        return render_here(settings, files, job, tell)
    return led(settings, lambda own: render_here(own, files, job, tell))


def render_here(settings: Settings, files: FileStore, job: Job, tell: Callable[[Event], None]) -> Rendered:
    """`render` in the process and thread of rank 0."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    engine = VideoEngine(settings, files, resolve_model(settings.model))
    engine.load(warm=False)
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
    return Rendered(receipt=data["receipt"], video=files.path(Output.from_dict(data["outputs"]["video"]).sha256))
