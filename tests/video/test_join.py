"""Which device and how many cores belong to which rank."""

import os
from pathlib import Path

import pytest
import torch

from videoserve.config import Settings
from videoserve.video.join import own_settings


@pytest.mark.parametrize(
    ("device", "worker", "rank", "own"),
    [
        ("cuda", 0, 0, "cuda:0"),
        ("cuda", 0, 3, "cuda:3"),
        ("cuda", 1, 3, "cuda:7"),
        ("cuda:4", 0, 1, "cuda:5"),
        ("auto", 1, 0, "cuda:4"),
        ("cpu", 1, 3, "cpu"),
    ],
)
def test_devices_are_counted_on_from_rank_to_rank_and_from_worker_to_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, worker: int, rank: int, own: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    settings = Settings(data=tmp_path, ranks=4, device=device)
    assert own_settings(settings, rank, worker).device == own


def test_without_a_card_all_ranks_are_on_the_cpu_and_share_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    own = own_settings(Settings(data=tmp_path, ranks=2), 1, 0)
    assert (own.device, own.threads) == ("auto", max(1, len(os.sched_getaffinity(0)) // 2))
    assert own_settings(Settings(data=tmp_path, ranks=2, threads=3), 1, 0).threads == 3
