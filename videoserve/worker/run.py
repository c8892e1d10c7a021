"""The worker that makes videos: all of it in this process, or one of its ranks."""

import logging
import os

import torch

from videoserve.config import EXIT_REFUSED, WORKER_NEEDS_REDIS, Settings
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.storage.files import FileStore
from videoserve.storage.open_cache import open_cache
from videoserve.storage.open_files import open_files
from videoserve.video.engine import VideoEngine
from videoserve.video.follower import follow
from videoserve.video.quiet import quiet
from videoserve.worker.work import exit_code_of
from videoserve_cache.tiers import SharedCache

log = logging.getLogger(__name__)


def prepare(settings: Settings, cache: SharedCache | None = None) -> tuple[str, FileStore, VideoEngine]:
    """The model's name, the file store and an engine that has not loaded yet. Raises ValueError, a sentence."""
    directory = resolve_model(settings.model)
    files = open_files(settings)
    torch.set_num_threads(settings.threads or len(os.sched_getaffinity(0)))
    return ModelCard.read(directory).name, files, VideoEngine(settings, files, directory, cache)


def run_worker(settings: Settings) -> int:
    """The exit code of a worker with these settings. Its process has started its log already."""
    quiet()
    try:
        if settings.redis_url is None:
            raise ValueError(WORKER_NEEDS_REDIS)
        cache = open_cache(settings, serves=False)
        parts = prepare(settings, cache)
    except ValueError as error:
        log.error(str(error))
        return EXIT_REFUSED
    code = exit_code_of(settings, *parts, shown=parts[2].shown)
    if cache is not None:
        cache.close()
    return code


def run_follower(settings: Settings) -> int:
    """The exit code of a rank that another one leads. Raises what `follow` raises."""
    quiet()
    torch.set_num_threads(settings.threads)
    follow(settings, resolve_model(settings.model))
    return 0
