"""How the process of a worker begins: with its own device, or not at all."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from videoserve.config import EXIT_REFUSED, Settings
from videoserve.worker import run
from videoserve.worker import start as process


def test_workers_of_one_rank_each_have_a_card_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    def run_worker(settings: Settings) -> int:
        devices.append(settings.device)
        return 0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run, "run_worker", run_worker)
    monkeypatch.setattr(process, "start_logs", lambda level, name: None)
    for device in ("auto", "cuda:2"):
        for place in (0, 1):
            assert process.start(Settings(data=tmp_path, device=device), place) == 0
    assert devices == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]


def test_settings_that_cannot_be_used_are_told_in_a_sentence(tmp_path: Path) -> None:
    environment = {"VIDEOSERVE_DATA": str(tmp_path), "VIDEOSERVE_RANKS": "none"}
    ended = subprocess.run([sys.executable, "-m", "videoserve.worker"], env=environment, capture_output=True, text=True)
    assert ended.returncode == EXIT_REFUSED
    assert ended.stderr.startswith("Setting ranks is 'none', which is not usable")
