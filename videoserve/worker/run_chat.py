"""The worker that answers chats."""

import logging

import torch

from videoserve.config import EXIT_REFUSED, WORKER_NEEDS_REDIS, Settings
from videoserve.metrics import Meter
from videoserve.planning.chat_model import NoChat, chat_card
from videoserve.storage.open_cache import open_cache
from videoserve.storage.open_files import open_files
from videoserve.text.engine import TextEngine
from videoserve.text.ranks import follow
from videoserve.worker.chat_place import chat_settings
from videoserve.worker.work import exit_code_of
from videoserve_kernels.comm.channel import Channel

log = logging.getLogger(__name__)


def run_chat_worker(settings: Settings, place: int = 0) -> int:
    """The exit code of the chat worker number `place` of its server, of one rank. Its log is started already."""
    return lead_chats(chat_settings(settings, place))


def lead_chats(own: Settings) -> int:
    """The exit code of a chat worker with these settings, whose other ranks are in follow_chats."""
    try:
        if own.redis_url is None:
            raise ValueError(WORKER_NEEDS_REDIS)
        card = chat_card(own)
        cache = open_cache(own, serves=False)
        files = open_files(own)
    except (NoChat, ValueError) as error:
        log.error(str(error))
        return EXIT_REFUSED
    torch.set_num_threads(own.threads)
    meter = Meter()
    engine = TextEngine(own, cache, meter, Channel() if own.ranks > 1 else None)
    code = exit_code_of(own, card.name, files, engine, {"device": own.device}, meter)
    if cache is not None:
        cache.close()
    return code


def follow_chats(own: Settings) -> int:
    """The exit code of a rank that another one leads. Raises what `follow` raises."""
    torch.set_num_threads(own.threads)
    follow(own, Channel())
    return 0
