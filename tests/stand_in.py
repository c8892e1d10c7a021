"""A worker without a model, for tests of the API: a real client of the broker that answers every job with one video."""

import asyncio
import threading
import time
from pathlib import Path

import numpy as np

from videoserve.broker import Broker, Claim
from videoserve.errors import FenceLost
from videoserve.media.mp4 import write_mp4
from videoserve.media.sheet import spritesheet, thumbnail
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Event, Output

STEPS = 4
FAILURE = ("numerical_error", "Step 3 of 4 gave values that are not finite.")
COSTS = {"encode": 0.01, "step": 0.02, "decode": 0.01, "write": 0.01}


class StandIn:
    """Runs jobs one after another. A prompt with the word "fail" fails, one with "wait" runs until it is cancelled."""

    def __init__(self, broker: Broker, files: FileStore, step_s: float = 0.01):
        self._broker = broker
        self._step_s = step_s
        self._outputs = outputs(files)

    async def run(self) -> None:
        while True:
            claim = await self._broker.claim("video", "stand-in", Appetite(idle=True))
            if claim is None:
                await self._broker.wait_for_work("video", 0.5)
                continue
            try:
                await self.work(claim)
            except FenceLost:
                # Deleted while it ran.
                continue

    async def work(self, claim: Claim) -> None:
        job_id, fence = claim.job.id, claim.fence
        prompt = claim.job.request["prompt"]
        await self._tell(claim, "stage", stage="encode")
        await self._tell(claim, "stage", stage="denoise")
        steps = 10_000 if "wait" in prompt else STEPS
        for step in range(1, steps + 1):
            await asyncio.sleep(self._step_s)
            if await self._broker.cancelled([job_id]):
                await self._broker.fail(job_id, fence, "cancelled", "The job was cancelled.", retry=False)
                return
            if "fail" in prompt and step == 3:
                await self._broker.fail(job_id, fence, *FAILURE, retry=False)
                return
            left_s = (steps - step) * self._step_s
            await self._tell(claim, "progress", progress=int(90 * step / steps), step=step, steps=steps, eta_s=left_s)
            await self._tell(claim, "preview", step=step, media_type="image/webp", base64="AAAA")
        await self._tell(claim, "adjusted", sentence="The engine adds this sentence.")
        await self._tell(claim, "progress", progress=100, step=steps, steps=steps, eta_s=0)
        receipt = {
            "version": 2,
            "stages": {"encode": 0.01, "denoise": 0.08, "decode": 0.01, "write": 0.01},
            "total_s": 0.11,
            "peak_memory_bytes": 3 * 2**20,
        }
        await self._broker.finish(job_id, fence, self._outputs, receipt)

    async def _tell(self, claim: Claim, kind: str, **data: object) -> None:
        event = Event.from_dict({"job_id": claim.job.id, "kind": kind, "data": data})
        await self._broker.record(claim.job.id, claim.fence, [event])


class StandInThread(threading.Thread):
    """A StandIn with its own event loop and broker, for tests whose client blocks."""

    def __init__(self, redis_url: str, data: Path):
        super().__init__(daemon=True)
        self._url = redis_url
        self._files = FileStore(data / "files")
        self._ended = threading.Event()

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        broker = Broker.connect(self._url, lease_s=10.0, max_attempts=3, aging_s=60.0, retention_s=3600.0)
        working = asyncio.create_task(StandIn(broker, self._files).run())
        await broker.heartbeat("stand-in", {"kind": "video", "ready": True}, ttl=600)
        while not self._ended.is_set():
            await asyncio.sleep(0.02)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await broker.close()

    def end(self) -> None:
        self._ended.set()
        self.join(timeout=10)
        assert not self.is_alive(), "The stand-in did not end."


def outputs(files: FileStore) -> dict[str, Output]:
    """A real mp4 of moving stripes, its thumbnail and spritesheet, in the store."""
    frames = np.zeros((9, 32, 48, 3), np.uint8)
    for number, frame in enumerate(frames):
        frame[:, number * 4 : number * 4 + 8] = 200
    path = files.temporary(".mp4")
    write_mp4(frames, 8, 23, path)
    size = path.stat().st_size
    made = {"video": Output(sha256=files.put_file(path), bytes=size, media_type="video/mp4")}
    for variant, data, kind in (
        ("thumbnail", thumbnail(frames), "image/webp"),
        ("spritesheet", spritesheet(frames), "image/jpeg"),
    ):
        made[variant] = Output(sha256=files.put(data), bytes=len(data), media_type=kind)
    return made


def until(condition: object, timeout_s: float = 10.0) -> None:
    """Waits in a thread of a blocking test until `condition()` is true."""
    end = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "It did not happen in time."
        time.sleep(0.01)
