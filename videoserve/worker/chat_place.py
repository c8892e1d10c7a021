"""Where a chat worker computes, and with what."""

import logging
import os

import torch

from videoserve.config import Settings

log = logging.getLogger(__name__)


def chat_settings(settings: Settings, place: int) -> Settings:
    """The settings of one chat worker: its own ranks, its first device and the threads of each rank.

    Raises ValueError, a sentence, where ranks would have to share a card.
    """
    cores = len(os.sched_getaffinity(0))
    return settings.model_copy(
        update={
            "device": chat_device(settings, place, torch.cuda.device_count()),
            "threads": settings.threads or max(1, cores // max(1, settings.chat_workers * settings.chat_ranks)),
            "ranks": settings.chat_ranks,
            "parallel": "auto",
        }
    )


def chat_device(settings: Settings, place: int, cards: int) -> str:
    """The first device of the chat worker number `place` of a machine with so many `cards`; its other ranks follow it.

    It is said, or behind those of the video workers.
    """
    said, ranks = settings.chat_device, settings.chat_ranks
    if said.startswith("cuda"):
        return f"cuda:{int(said.partition(':')[2] or 0) + place * ranks}"
    if said != "auto" or not cards or settings.device == "cpu":
        return "cpu" if said == "auto" else said
    first = int(settings.device.partition(":")[2] or 0)
    own = first + settings.workers * settings.ranks + place * ranks
    if ranks > 1 and own + ranks > cards:
        raise ValueError(
            f"chat_ranks is {ranks}, and {max(cards - own, 0)} of {cards} cards are left for them: say chat_device, or "
            f"fewer ranks."
        )
    if own >= cards:
        own = cards - 1
        log.warning("no card is left for chats alone; they share one with videos", extra={"device": f"cuda:{own}"})
    return f"cuda:{own}"
