"""A rank that does not lead, on its own: what it keeps and tells of a unit of work that failed."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from videoserve.video import follower
from videoserve.video.follower import Follower
from videoserve.video.load import Model
from videoserve_cache.steps.store import Budget
from videoserve_kernels.comm.channel import Channel
from videoserve_kernels.comm.plan import ParallelPlan

ONE = ParallelPlan()
BEGIN = {"kind": "begin", "model": "m", "plans": [ONE.name, ONE.name], "limit_s": 5.0}
UNIT = {"kind": "decode", "job": "a", "first": True, "guided": True, "plan": ONE.digest, "tensors": []}
RECOVER, CLOSE = {"kind": "recover"}, {"kind": "close"}


class Script:
    """Rank 0 at the other end of a channel: says its headers one after the other."""

    rank = 1

    def __init__(self, *headers: dict[str, Any]) -> None:
        self.headers = list(headers)
        self.answered: list[dict[str, Any]] = []

    def hear(self, *, limit_s: float) -> dict[str, Any]:
        return self.headers.pop(0)

    def answer(self, document: dict[str, Any], *, limit_s: float) -> None:
        self.answered.append(document)

    def close(self) -> None:
        assert not self.headers


class Failed(RuntimeError):
    """What a unit of work fails with; can be watched, as Python's own exceptions cannot."""


def serve(script: Script) -> None:
    model = SimpleNamespace(config="m", device=torch.device("cpu"))
    Follower(cast(Model, model), cast(Channel, script), Budget(0)).serve()


def test_what_failed_is_let_go_before_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[weakref.ref[Failed]] = []
    alive: list[bool] = []

    def failure() -> Failed:
        error = Failed("no such latents")
        failures.append(weakref.ref(error))
        return error

    def receive(about: Any, mesh: Any) -> Any:
        raise failure()

    monkeypatch.setattr(follower, "receive", receive)
    monkeypatch.setattr(follower, "release", lambda device: alive.append(failures[0]() is not None))
    # A captured record would hold the exception.
    monkeypatch.setattr(follower.log, "disabled", True)
    script = Script(BEGIN, UNIT, RECOVER, CLOSE)
    gc.disable()
    try:
        serve(script)
    finally:
        gc.enable()
    assert script.answered == [{"failure": "Failed: no such latents"}]
    assert alive == [False]


def test_a_failure_of_its_own_is_logged_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    serve(Script(BEGIN, UNIT, RECOVER, CLOSE))
    (record,) = caplog.records
    assert (record.message, record.exc_info is not None) == ("a unit of work failed", True)
