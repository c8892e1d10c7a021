"""200 clients poll twice a second, 10,000 jobs in the store, a job runs: what a poll takes, and what it costs the job.

    python benchmarks/polling.py [--rounds 3]

One server (`videoserve serve`, one API process, one worker) with the demo model on this machine. A round is the same
job alone and then beside the pollers, each time with another seed. The pollers have connected and asked before the job
comes, one of them asks for the job itself. Every answer is checked: status 200, the id that was asked for. A job of two
threads waits for the later one, so it loses about what the polls take of one core, the clients' share included.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import re
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from _server import Server

from videoserve.broker import Broker, EmbeddedRedis
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.planning.plan import plan_video
from videoserve.types import Appetite, Job, VideoRequest

STORED = 10_000
CLIENTS = 200
EVERY_S = 0.5
TICK_S = 0.01
PATIENCE_S = 10
# Linux', for which Python has no name: when the kernel had received what is read.
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("qq")
LENGTH = re.compile(rb"content-length: (\d+)\r\n(?:[^\r]+\r\n)*\r\n")
STEPS = 120
PICTURES = Path(__file__).parents[1] / "videoserve" / "demo" / "pictures"


def finished_jobs() -> list[Job]:
    """Jobs as clients make them; their pictures are not needed to be polled."""
    card = ModelCard.read(resolve_model("demo"))
    request = VideoRequest(prompt="pan left", image="0" * 64, seed=0)
    plan = plan_video(request, card, (128, 128), random_seed=0).to_dict()
    now = time.time()
    return [
        Job(id=f"video_{i:032x}", kind="video", tenant="local", request=request.to_dict(), plan=plan, created_at=now)
        for i in range(STORED)
    ]


async def fill(url: str, jobs: list[Job]) -> None:
    """Brings every job through its whole life, as a worker would."""
    broker = Broker.connect(url, lease_s=60.0, max_attempts=3, aging_s=60.0, retention_s=86400.0)
    for start in range(0, len(jobs), 100):
        await broker.submit(jobs[start : start + 100], queue_limit=STORED, key_queue_limit=STORED)
        # Together: Redis writes to disk once for all that waits.
        await asyncio.gather(*(finish_one(broker) for _ in jobs[start : start + 100]))
    await broker.close()


async def finish_one(broker: Broker) -> None:
    claim = await broker.claim("video", "filler", Appetite(idle=True))
    assert claim is not None
    await broker.finish(claim.job.id, claim.fence, {}, {"version": 1})


class Client:
    """One client on one connection kept open, asking for one job; it costs this machine as little as it can."""

    def __init__(self, host: str, port: int, job_id: str):
        self._place = f"{host}:{port}"
        self._connection = socket.create_connection((host, port))
        # By the kernel: Python's own timeout is one more call to it before each of these.
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PATIENCE_S, 0))
        self._connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.follow(job_id)

    def follow(self, job_id: str) -> None:
        """Asks for this job from now on."""
        self._id = job_id.encode()
        self._request = f"GET /v1/videos/{job_id} HTTP/1.1\r\nHost: {self._place}\r\n\r\n".encode()
        self._right = b""

    def ask(self) -> None:
        self._asked_at = time.time()
        self._connection.sendall(self._request)

    def answered(self) -> float:
        """Seconds from the question to the arrival of the whole answer, whenever this reads it."""
        answer, at = self._received()
        # With the same end as the one before, from the length on, it is whole and about this job.
        if not (self._right and answer.endswith(self._right)):
            while not (found := LENGTH.search(answer)) or len(answer) < found.end() + int(found[1]):
                piece, at = self._received()
                answer += piece
            if b'"id":"' + self._id not in answer:
                raise SystemExit(f"A poll for {self._id.decode()} was answered with {answer[-200:]!r}.")
            self._right = answer[found.start() :]
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"A poll was answered wrongly: {answer[:60]!r}.")
        return at - self._asked_at

    def _received(self) -> tuple[bytes, float]:
        piece, stamps, _, _ = self._connection.recvmsg(4096, socket.CMSG_SPACE(TIMESPEC.size))
        if not piece:
            raise SystemExit("The server ended a connection that polls.")
        seconds, nanoseconds = TIMESPEC.unpack(stamps[0][2])
        return piece, seconds + nanoseconds / 1e9


class Crowd:
    """All clients. Each asks once in EVERY_S, at a moment of its own on a grid of TICK_S.

    Those of one moment ask together, and their answers are read a moment later, when they are there: a timer and a
    thread for each, and a wake-up for each answer, would take from the job what clients elsewhere do not.
    """

    def __init__(self, url: str, ids: list[str]):
        place = urlsplit(url)
        self.clients = [Client(str(place.hostname), place.port or 80, job_id) for job_id in ids]
        self._turns: list[list[Client]] = [[] for _ in range(round(EVERY_S / TICK_S))]
        for client in self.clients:
            random.choice(self._turns).append(client)
        self._began = time.perf_counter()
        self._tick = 0

    def ask_until(self, done: Callable[[], bool]) -> list[float]:
        """Seconds that each poll took."""
        taken: list[float] = []
        while not done():
            asking = self._turns[self._tick % len(self._turns)]
            for client in asking:
                client.ask()
            self._tick += 1
            time.sleep(max(0.0, self._began + self._tick * TICK_S - time.perf_counter()))
            taken += [client.answered() for client in asking]
        return taken

    def has_asked_twice(self) -> bool:
        return self._tick >= 2 * len(self._turns)


def poll(url: str, ids: list[str], job: Any, stop: Event, answer: Connection) -> None:
    """All clients, in a process of their own, until `stop`; one of them follows the job that `job`, shared, will name.

    Sends True once everybody is connected and asks. At the end sends what they did since there was a job: for how long
    they polled, in how much processor time, and what each poll took.
    """
    crowd = Crowd(url, ids)
    crowd.ask_until(crowd.has_asked_twice)
    answer.send(True)
    crowd.ask_until(lambda: bool(job.value))
    crowd.clients[0].follow(job.value.decode())
    began, processor_s = time.perf_counter(), time.process_time()
    taken = crowd.ask_until(stop.is_set)
    answer.send((time.perf_counter() - began, time.process_time() - processor_s, taken))


class PolledServer(Server):
    """A server that is asked for the same job again and again, each time with another seed."""

    def __init__(self, data: Path):
        super().__init__(data)
        self._seed = 0

    def create(self) -> str:
        self._seed += 1
        with next(PICTURES.glob("*.jpg")).open("rb") as picture:
            fields = {"prompt": "pan left", "num_inference_steps": str(STEPS), "seed": str(self._seed)}
            return str(self.json("POST", "/v1/videos", data=fields, files={"input_reference": picture})["id"])

    def denoise_s(self, video_id: str) -> float:
        """Waits for the job's end; seconds of its denoising, from its receipt."""
        while (video := self.json("GET", f"/v1/videos/{video_id}"))["status"] not in ("completed", "failed"):
            time.sleep(1.0)
        if video["status"] != "completed":
            raise SystemExit(f"The job failed: {video['error']}.")
        return float(self.json("GET", f"/v1/videos/{video_id}/receipt")["stages"]["denoise"])

    def api_processor_s(self) -> float:
        """Processor time of the API process so far."""
        for about in Path("/proc").glob("[0-9]*"):
            fields = (about / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == self.process.pid and b"videoserve.api" in (about / "cmdline").read_bytes():
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        raise SystemExit("The server has no API process.")


@dataclass(frozen=True, slots=True)
class Polled:
    """A job's denoising seconds with everybody polling; seconds of that, what each poll took, and processor time."""

    denoise_s: float
    seconds: float
    polls: list[float]
    clients_s: float
    api_s: float


def beside_pollers(server: PolledServer, ids: list[str]) -> Polled:
    """One job with everybody polling."""
    here, there = multiprocessing.Pipe(duplex=False)
    stop = multiprocessing.Event()
    job = multiprocessing.Array("c", 64, lock=False)
    pollers = multiprocessing.Process(target=poll, args=(server.url, ids, job, stop, there))
    pollers.start()
    # So that their end is heard.
    there.close()
    try:
        assert here.recv()
        video_id = server.create()
        api_s = server.api_processor_s()
        job.value = video_id.encode()
        seconds = server.denoise_s(video_id)
    finally:
        stop.set()
    polling_s, clients_s, taken = here.recv()
    pollers.join()
    return Polled(seconds, polling_s, taken, clients_s, server.api_processor_s() - api_s)


def main() -> None:
    rounds = argparse.ArgumentParser(description=__doc__)
    rounds.add_argument("--rounds", type=int, default=3)
    count = rounds.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="videoserve-") as folder:
        jobs = finished_jobs()
        with EmbeddedRedis(Path(folder)) as redis:
            asyncio.run(fill(redis.url, jobs))
        server = PolledServer(Path(folder))
        try:
            ids = [job.id for job in random.Random(0).sample(jobs, CLIENTS)]
            server.denoise_s(server.create())
            alone, polled, api_alone_s = [], [], 0.0
            for _ in range(count):
                video_id, api_s = server.create(), server.api_processor_s()
                alone.append(server.denoise_s(video_id))
                api_alone_s += server.api_processor_s() - api_s
                polled.append(beside_pollers(server, ids))
        finally:
            server.stop()
    polls = sorted(seconds for each in polled for seconds in each.polls)
    beside = [each.denoise_s for each in polled]
    polled_s = sum(each.seconds for each in polled)
    rate = len(polls) / polled_s
    clients_s, api_s = (sum(taken) for taken in zip(*((each.clients_s, each.api_s) for each in polled), strict=True))
    print(f"{STORED} jobs stored, {CLIENTS} clients, {len(polls)} polls, {rate:.0f} a second")
    print("poll, ms      " + "  ".join(f"p{q} {1000 * polls[int(len(polls) * q / 100)]:.1f}" for q in (50, 90, 99)))
    # Every step of the job is told to the API, whoever polls.
    api_s -= api_alone_s * sum(beside) / sum(alone)
    print(
        f"processor     API {1e6 * api_s / len(polls):.0f} us a poll, clients {1e6 * clients_s / len(polls):.0f} us: "
        f"{(api_s + clients_s) / polled_s:.1%} of a core; the job itself {1e3 * api_alone_s / count:.0f} ms of the API"
    )
    cost = statistics.median(beside) / statistics.median(alone) - 1
    print(f"job alone     {statistics.median(alone):.2f} s of denoising, {STEPS} steps (each {show(alone)})")
    print(f"beside polls  {statistics.median(beside):.2f} s, {cost:+.1%} (each {show(beside)})")


def show(seconds: list[float]) -> str:
    return " ".join(f"{s:.2f}" for s in seconds)


if __name__ == "__main__":
    main()
