"""The ranks of a worker: started by torch's elastic agent, watched, and all started again when one of them is lost."""

import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, MultiprocessContext, SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from videoserve.config import EXIT_REFUSED, Settings
from videoserve.worker.rank import PART, run_rank

log = logging.getLogger(__name__)

WATCH_S = 0.05
# In the life of one agent; then its server starts another one.
RESTARTS_MAX = 20
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 15.0
# A group that lived this long was well; its next pause is short again.
STEADY_S = 30.0
# For rank 0 to give its jobs back when another rank is lost: a little more than that takes at most.
PART_S = 12.0
# For ranks that rank 0 has told to end, and for the kernel to end those that are killed.
GRACE_S = 0.5

Codes = dict[int, int | None]


class RankAgent(LocalElasticAgent):
    """torch's agent for ranks of which the first answers for the jobs: it is asked, the others are simply ended.

    Starting, rendezvous and the count of restarts are torch's. Its own way to stop ranks is one signal for all and 30
    seconds of patience, and a rank that stands still would hold up the others for as long.
    """

    def __init__(self, spec: WorkerSpec, *, drain_s: float, stop_s: float) -> None:
        """`stop_s` is how long a rank may stand still, as after SIGSTOP."""
        super().__init__(spec, DefaultLogsSpecs(log_dir=os.devnull), start_method="forkserver")
        self._drain_s = drain_s
        self._stop_s = stop_s
        self._stopped: dict[int, float] = {}
        self._pause_s = FIRST_PAUSE_S
        self._began = time.monotonic()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        self._began = time.monotonic()
        started: dict[int, int] = super()._start_workers(worker_group)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = self._codes()
        if all(code is None for code in codes.values()):
            self._end_stopped()
            return RunResult(state=WorkerState.HEALTHY)
        lived_s = round(time.monotonic() - self._began, 1)
        log.error("a rank has ended", extra={"codes": codes, "lived_s": lived_s})
        if codes[0] != 0:
            # What rank 0 waits for from them breaks off at once.
            self._kill(rank for rank in codes if rank != 0)
        self._end(PART, PART_S)
        return self._result()

    def _end_stopped(self) -> None:
        """Ends ranks that have stood still for too long: in the middle of a step, idle, or with everybody's leases."""
        now = time.monotonic()
        stopped = [rank for rank, pid in self._pids().items() if is_stopped(pid)]
        self._stopped = {rank: self._stopped.get(rank, now) for rank in stopped}
        self._kill(rank for rank, since in self._stopped.items() if now - since > self._stop_s)

    def _result(self) -> RunResult:
        codes = self._codes()
        if codes[0] == 0:
            return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(codes))
        if EXIT_REFUSED in codes.values():
            self._remaining_restarts = 0
        failures = {rank: ProcessFailure(rank, self._pids()[rank], code or 0, "") for rank, code in codes.items()}
        return RunResult(state=WorkerState.FAILED, failures=failures)

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if time.monotonic() - self._began > STEADY_S:
            self._pause_s = FIRST_PAUSE_S
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        super()._restart_workers(worker_group)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._end(signal.SIGTERM, self._drain_s)
        super()._shutdown(signal.SIGKILL, timeout)

    def _end(self, number: signal.Signals, patience_s: float) -> None:
        """Signals rank 0 and waits for it; then ends whatever is left."""
        self._send(0, number)
        self._wait(lambda codes: codes.get(0, 0) is not None, patience_s)
        self._wait(all_ended, GRACE_S)
        self._kill(self._codes())
        self._wait(all_ended, GRACE_S)

    def _kill(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._send(rank, signal.SIGKILL)

    def _send(self, rank: int, number: signal.Signals) -> None:
        if self._codes().get(rank, 0) is None:
            with suppress(ProcessLookupError):
                os.kill(self._pids()[rank], number)

    def _wait(self, reached: Callable[[Codes], bool], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not reached(self._codes()) and time.monotonic() < deadline:
            time.sleep(WATCH_S / 2)

    def _codes(self) -> Codes:
        """Exit codes by rank: None while it lives, negative for a signal. Empty before the first start."""
        context = self._pcontext
        if not isinstance(context, MultiprocessContext) or context._pc is None:
            return {}
        return {rank: process.exitcode for rank, process in enumerate(context._pc.processes)}

    def _pids(self) -> dict[int, int]:
        assert self._pcontext is not None
        return self._pcontext.pids()


def is_stopped(pid: int) -> bool:
    """On Linux only; elsewhere nothing seems to be."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")
    except OSError:
        return False


def all_ended(codes: Codes) -> bool:
    return None not in codes.values()


def run_group(settings: Settings, worker: int, run_rank: Callable[[Settings, str, int], None] = run_rank) -> int:
    """Keeps the ranks of a worker until SIGTERM; the exit code. `worker` is its number among those of its server.

    `run_rank` is what each rank's process calls, with these settings, the group's folder and `worker`.
    """
    # They would share a store that every interface of the machine listens for; a file in a folder of our own is enough.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # It would say at every end, and in a form of its own, that it got a signal.
    logging.getLogger("torch.distributed.elastic.agent.server.api").setLevel(logging.ERROR)
    with TemporaryDirectory(prefix="videoserve-ranks-") as folder:
        spec = WorkerSpec(
            role="rank",
            local_world_size=settings.ranks,
            entrypoint=run_rank,
            args=(settings, folder, worker),
            rdzv_handler=get_rendezvous_handler(rendezvous(Path(folder) / "agent")),
            max_restarts=RESTARTS_MAX,
            monitor_interval=WATCH_S,
            local_addr="127.0.0.1",
        )
        try:
            result = RankAgent(spec, drain_s=settings.drain_s, stop_s=settings.collective_timeout_s).run()
        except SignalException:
            return 0
    refused = any(failure.exitcode == EXIT_REFUSED for failure in result.failures.values())
    return EXIT_REFUSED if refused else int(result.is_failed())


def rendezvous(store: Path) -> RendezvousParameters:
    """Of one agent with itself."""
    return RendezvousParameters("c10d", str(store), uuid.uuid4().hex, 1, 1, "127.0.0.1", store_type="file")
