"""Finding a client's video and showing it."""

from typing import Annotated, Any

from fastapi import Depends

from videoserve.api.auth import Caller, require
from videoserve.api.service import Service
from videoserve.api.video_object import video_object
from videoserve.broker import JobState
from videoserve.broker.jobs import missing
from videoserve.errors import Conflict
from videoserve.types import Job

Generate = Annotated[Caller, Depends(require("generate"))]


async def find(service: Service, video_id: str, caller: Caller) -> tuple[Job, JobState]:
    """Raises NotFound for a video that is not there or another client's."""
    found = await service.broker.get(video_id, caller.tenant)
    # Chats have ids as well, and no Video.
    if found is None or found[0].kind != "video":
        raise missing(video_id)
    return found


async def show(service: Service, job: Job, state: JobState) -> dict[str, Any]:
    work_s = service.work_s(job, await service.costs()) if state.status == "queued" else None
    return video_object(job, state, work_s=work_s)


def not_ready(video_id: str, state: JobState) -> Conflict:
    """Why there is nothing to hand out of a video that is not completed."""
    if state.error is not None:
        return Conflict(f"The video {video_id} failed ({state.error['code']}): {state.error['message']}")
    return Conflict(f"The video {video_id} is {state.status}, {state.progress}% done; its results come at the end.")
