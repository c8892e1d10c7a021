"""A video without a server, up to the point where the device is needed: the picture, the plan, the job."""

import secrets
import time
import uuid
from typing import Any

from videoserve.config import Settings
from videoserve.media.image import normalise
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.planning.plan import plan_video
from videoserve.storage.files import FileStore
from videoserve.types import Job, VideoRequest

# The range of seeds that are picked when none is asked for: short enough to be typed again.
RANDOM_SEEDS = 2**32


def make_job(settings: Settings, files: FileStore, picture: bytes, fields: dict[str, Any]) -> Job:
    """Plans a video from the bytes of a picture and the fields of VideoRequest.

    Raises ServeError for what cannot be done, ValueError for a model that cannot be used.
    """
    card = ModelCard.read(resolve_model(settings.model))
    image = normalise(picture, pixel_limit=settings.image_pixels, side_min=settings.image_side_min)
    request = VideoRequest(image=files.put(image.png), image_notes=image.adjustments, **fields)
    plan = plan_video(
        request,
        card,
        (image.width, image.height),
        random_seed=secrets.randbelow(RANDOM_SEEDS),
        pixels_max=settings.pixels_max,
    )
    return Job(
        id=f"video_{uuid.uuid4().hex}",
        kind="video",
        tenant="local",
        request=request.to_dict(),
        plan=plan.to_dict(),
        created_at=time.time(),
    )
