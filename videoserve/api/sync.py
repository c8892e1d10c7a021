"""The answer that is the video itself: waits for a job's end, and ends the job when its client leaves."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response

from videoserve.api.content import whole_file
from videoserve.api.service import Service
from videoserve.broker import JobState
from videoserve.broker.patience import until_stored
from videoserve.errors import Conflict, ServeError
from videoserve.types import Job

# What a job's error is as the answer to a request, by its code; every other one is the server's fault.
STATUSES: Final = {
    "adapter_unusable": 409,
    "cancelled": 409,
    "image_missing": 409,
    "invalid_value": 422,
    "deadline_exceeded": 504,
    "out_of_memory": 507,
}


async def result_of(service: Service, job: Job, request: Request, *, cancels: bool) -> Response:
    """The mp4 of `job` once it is done. Raises ServeError when it fails, naming the code of the job's error.

    A client that leaves cancels it where it `cancels`; elsewhere it may come again for the same job. While the job
    store is away the job goes on, and so does this.
    """
    ended = asyncio.create_task(until_stored(lambda: _end(service, job)))
    left = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            if cancels:
                await until_stored(lambda: service.broker.cancel(job.id, job.tenant))
            # Nobody reads this answer.
            raise Conflict(f"The client left before the video {job.id} was done.", code="client_left")
        state = ended.result()
    finally:
        await _stop(ended, left)
    if state is None:
        raise Conflict(f"The video {job.id} was deleted before it was done.")
    if state.error is not None:
        status = STATUSES.get(state.error["code"], 500)
        raise ServeError(state.error["message"], status=status, code=state.error["code"])
    assert state.receipt is not None, "a job without an error that has ended is completed"
    return await whole_file(service.files, job, state.outputs["video"], "video", _headers(job, state.receipt))


async def _end(service: Service, job: Job) -> JobState | None:
    """The state of the job once it has ended; None when it was deleted."""
    async for _ in service.broker.events(job.id, 0):
        pass
    found = await service.broker.get(job.id, job.tenant)
    return None if found is None else found[1]


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _headers(job: Job, receipt: Mapping[str, Any]) -> dict[str, str]:
    return {
        "X-Request-Id": job.id,
        "X-Model": str(job.plan["model"]),
        "X-Inference-Time-S": f"{receipt['total_s']:.3f}",
        "X-Stage-Durations": json.dumps(receipt["stages"]),
        "X-Peak-Memory-MB": f"{receipt['peak_memory_bytes'] / 2**20:.1f}",
    }
