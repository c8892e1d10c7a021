"""Where chat workers compute, and with what."""

from pathlib import Path
from typing import Any

import pytest

from videoserve.config import Settings
from videoserve.worker.chat_place import chat_device, chat_settings


@pytest.mark.parametrize(
    ("settings", "place", "cards", "device"),
    [
        ({}, 0, 0, "cpu"),
        # Behind those of the video workers; the last one is shared where none is left.
        ({}, 0, 8, "cuda:1"),
        ({"workers": 2, "ranks": 2, "device": "cuda:1"}, 1, 8, "cuda:6"),
        ({"ranks": 8}, 0, 8, "cuda:7"),
        ({"workers": 0}, 1, 8, "cuda:1"),
        ({"device": "cpu"}, 0, 8, "cpu"),
        ({"chat_device": "cuda:3"}, 2, 8, "cuda:5"),
        ({"chat_device": "cuda"}, 0, 1, "cuda:0"),
        ({"chat_device": "cpu"}, 1, 8, "cpu"),
        ({"chat_ranks": 3}, 1, 8, "cuda:4"),
        ({"chat_ranks": 2, "chat_device": "cuda:1"}, 1, 8, "cuda:3"),
    ],
)
def test_devices(settings: dict[str, Any], place: int, cards: int, device: str, tmp_path: Path) -> None:
    assert chat_device(Settings(data=tmp_path, **settings), place, cards) == device


def test_ranks_never_share_a_card(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chat_ranks is 4, and 3 of 4 cards are left for them"):
        chat_device(Settings(data=tmp_path, chat_ranks=4), 0, 4)
    with pytest.raises(ValueError, match="chat_ranks is 2, and 0 of 1 cards are left"):
        chat_device(Settings(data=tmp_path, chat_ranks=2), 0, 1)


def test_a_chat_worker_has_its_own_ranks_whatever_those_of_video_are(tmp_path: Path) -> None:
    own = chat_settings(Settings(data=tmp_path, ranks=4, parallel="u4", threads=3, device="cpu"), 0)
    assert (own.ranks, own.parallel, own.threads, own.device) == (1, "auto", 3, "cpu")
    assert chat_settings(Settings(data=tmp_path, ranks=4, chat_ranks=2, device="cpu"), 0).ranks == 2
