"""Measuring this machine: what is kept, and ranks that fail."""

from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from videoserve.local.measure import MeasureFailed, first_answer, kept_or_measured
from videoserve_kernels.comm.choices import Choice, Choices
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.topology import look

CPU = torch.device("cpu")


def test_one_rank_is_measured_once(tmp_path: Path) -> None:
    first = kept_or_measured(tmp_path, 1, CPU, torch.float32)
    assert first.fingerprint == look().fingerprint_for([])
    assert kept_or_measured(tmp_path, 1, CPU, torch.float32) == first
    choices = Choices(tmp_path, first.fingerprint)
    choices.keep("key", Choice(plan=ParallelPlan(), step_s=1.0, measured_s=0.5))
    assert kept_or_measured(tmp_path, 1, CPU, torch.float32, again=True) != first
    # It was made on what has just been measured anew.
    assert choices.get("key") is None


def test_a_rank_that_fails_or_ends_or_says_nothing_is_told() -> None:
    ours, theirs = Pipe(duplex=False)
    theirs.send("RuntimeError: no such backend")
    with pytest.raises(MeasureFailed, match="Rank 0 could not measure: RuntimeError: no such backend"):
        first_answer([ours], 5.0)
    theirs.close()
    with pytest.raises(MeasureFailed, match="Rank 0 ended while"):
        first_answer([ours], 5.0)
    silent, _open = Pipe(duplex=False)
    with pytest.raises(MeasureFailed, match="did not measure each other within 0 seconds"):
        first_answer([silent], 0.01)
