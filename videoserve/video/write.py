"""Stage four: frames to files: the mp4, a thumbnail and a spritesheet."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from videoserve.media.mp4 import write_mp4
from videoserve.media.sheet import spritesheet, thumbnail
from videoserve.storage.files import FileStore, disk_full_is_told
from videoserve.types import Output, VideoPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What is in the store, by variant, and sentences on what the file could not hold as it was."""

    outputs: dict[str, Output]
    notes: tuple[str, ...]


def write(frames: NDArray[np.uint8], plan: VideoPlan, files: FileStore) -> Written:
    """Stores the three variants of uint8 frames [F, H, W, 3]. Raises ServeError when the disk is full."""
    with disk_full_is_told():
        path = files.temporary(".mp4")
    try:
        with disk_full_is_told():
            notes = write_mp4(frames, plan.fps, plan.crf, path)
        size = path.stat().st_size
        video = Output(sha256=files.put_file(path), bytes=size, media_type="video/mp4")
    finally:
        path.unlink(missing_ok=True)
    outputs = {
        "video": video,
        "thumbnail": stored(files, thumbnail(frames), "image/webp"),
        "spritesheet": stored(files, spritesheet(frames), "image/jpeg"),
    }
    return Written(outputs=outputs, notes=notes)


def stored(files: FileStore, data: bytes, media_type: str) -> Output:
    return Output(sha256=files.put(data), bytes=len(data), media_type=media_type)
