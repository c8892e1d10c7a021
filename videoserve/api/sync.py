"""The answer that is the video itself: waits for a job's end, and ends the job when its client leaves."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from videoserve.api.content import whole_file
from videoserve.api.service import Service
from videoserve.broker import JobState
from videoserve.broker.patience import until_stored
from videoserve.errors import Conflict, ServeError
from videoserve.types import Job


async def result_of(service: Service, job: Job, request: Request) -> Response:
    """The mp4 of `job` once it is done. Raises ServeError when it fails, naming the code of the job's error.

    While the job store is away the job goes on, and so does this.
    """
    ended = asyncio.create_task(until_stored(lambda: _end(service, job)))
    left = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            # Nobody reads this answer.
            await until_stored(lambda: service.broker.cancel(job.id, job.tenant))
            raise Conflict(f"The client left before the video {job.id} was done; it is cancelled.", code="cancelled")
        state = ended.result()
    finally:
        await _stop(ended, left)
    if state is None:
        raise Conflict(f"The video {job.id} was deleted before it was done.")
    if state.error is not None:
        status = 409 if state.error["code"] == "cancelled" else 500
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
