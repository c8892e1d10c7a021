"""The environment that a receipt names."""

from dataclasses import replace

import pytest
import torch

from videoserve.video import environment
from videoserve_kernels.attention import BACKENDS

CPU = torch.device("cpu")


def test_attention_is_what_the_door_would_run() -> None:
    assert environment.describe(CPU, torch.float32).attention == "sdpa"


def test_attention_of_a_ring_is_told_where_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    sdpa, *others = BACKENDS
    without_lse = replace(
        sdpa, why_not=lambda *tensors, return_lse: "It returns no log-sum-exp." if return_lse else None
    )
    monkeypatch.setattr(environment, "BACKENDS", (without_lse, *others))
    assert environment.attention_of(CPU, torch.float32) == "sdpa, in a ring reference"
