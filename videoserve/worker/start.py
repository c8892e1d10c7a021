"""The process of a worker.

    python -m videoserve.worker [PLACE] [KIND]

reads its settings from the environment; PLACE counts the workers of that kind of a server from 0 and says whose devices
are whose, KIND is video or chat.
Exit codes: 0 after SIGTERM (running jobs are checkpointed and handed back), 1 when the engine broke or too many ranks
were lost, 2 when the settings or the model cannot be used.
"""

import logging
import os
import sys
from multiprocessing import forkserver

from videoserve.config import EXIT_REFUSED, Settings, load_settings
from videoserve.logs import start_logs

log = logging.getLogger(__name__)

# What ranks are forked with: all that they import, so that to start one again takes no longer than to load the model.
PRELOADED = ["videoserve.worker.fork_server", "torch.distributed.elastic.multiprocessing.api"]


def start(settings: Settings, place: int = 0, kind: str = "video") -> int:
    """Runs a worker; the exit code of its process. Nothing that starts and watches ranks is imported for one."""
    start_logs(settings.log_level, "worker" if kind == "video" else kind)
    if kind == "chat":
        return start_chat(settings, place)
    if settings.ranks == 1:
        from videoserve.video.join import own_settings
        from videoserve.worker.run import run_worker

        return run_worker(own_settings(settings, 0, place))
    preload("videoserve.worker.run")
    from videoserve.worker.group import run_group

    return run_group(settings, place)


def start_chat(settings: Settings, place: int) -> int:
    """The same for a chat worker."""
    if settings.chat_ranks == 1:
        from videoserve.worker.run_chat import run_chat_worker

        return run_chat_worker(settings, place)
    preload("videoserve.worker.run_chat")
    from videoserve.worker.chat_place import chat_settings
    from videoserve.worker.group import run_group
    from videoserve.worker.rank import run_chat_rank

    try:
        own = chat_settings(settings, place)
    except ValueError as error:
        log.error(str(error))
        return EXIT_REFUSED
    # Its device is counted already.
    return run_group(own, 0, run_chat_rank)


def preload(module: str) -> None:
    """Has the server of ranks import what they do, while this process does."""
    forkserver.set_forkserver_preload([*PRELOADED, module])
    forkserver.ensure_running()


def main() -> None:
    """Ends the process without waiting for the engine's thread, which may be in the middle of a long step."""
    place = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    kind = sys.argv[2] if len(sys.argv) > 2 else "video"
    try:
        settings, _ = load_settings({})
    except ValueError as error:
        # Without settings there is no log yet.
        print(error, file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    code = start(settings, place, kind)
    logging.shutdown()
    os._exit(code)
