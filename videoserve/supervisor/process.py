"""A child process that is kept alive, and that never outlives its parent."""

import asyncio
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from videoserve.config import EXIT_REFUSED
from videoserve.lifeline import die_with_parent

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 15.0
# A process that ran this long was well; its next pause is short again.
STEADY_S = 30.0


class ProcessRefused(Exception):
    """A child ended with EXIT_REFUSED; it has said why on standard error."""


@dataclass(slots=True)
class Process:
    """Runs `argv` and runs it again whenever it ends, after a pause that doubles while it keeps ending early.

    `starts` counts how often it was started. It has its own process group: Ctrl-C in a terminal reaches the parent
    only, which then ends its children in order.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    pass_fds: tuple[int, ...] = ()
    starts: int = 0
    _child: asyncio.subprocess.Process | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child and self._child.returncode is None else None

    async def keep(self) -> None:
        """Returns after `stop`; raises ProcessRefused when the child says that it cannot run at all."""
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run()
            if self._stopping.is_set():
                return
            if code == EXIT_REFUSED:
                raise ProcessRefused(f"The process {self.name} cannot run with these settings; it says why above.")
            lived_s = time.monotonic() - began
            if lived_s > STEADY_S:
                pause_s = FIRST_PAUSE_S
            log.error(
                "process ended, starting it again",
                extra={"child": self.name, "ended": _ending(code), "lived_s": round(lived_s, 1), "pause_s": pause_s},
            )
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after `grace_s` seconds. It is not started again."""
        self._stopping.set()
        child = self._child
        if child is None or child.returncode is not None:
            return
        _send(child, signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(child.wait()), grace_s)
        except TimeoutError:
            log.error("process did not end in time, killing it", extra={"child": self.name, "grace_s": grace_s})
            _send(child, signal.SIGKILL)
            await child.wait()

    def kill(self) -> None:
        """SIGKILL, for whoever waits in `stop` and will not wait any longer."""
        self._stopping.set()
        if self._child is not None:
            _send(self._child, signal.SIGKILL)

    async def _run(self) -> int:
        self._child = await asyncio.create_subprocess_exec(
            *self.argv,
            env=self.env,
            pass_fds=self.pass_fds,
            stdin=asyncio.subprocess.DEVNULL,
            process_group=0,
            preexec_fn=die_with_parent(),
        )
        self.starts += 1
        log.info("process started", extra={"child": self.name, "child_pid": self._child.pid})
        # `stop` may have come while the child was being made.
        if self._stopping.is_set():
            _send(self._child, signal.SIGTERM)
        return await self._child.wait()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


def _send(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if child.returncode is None:
        child.send_signal(number)


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
