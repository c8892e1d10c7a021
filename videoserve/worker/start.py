"""The process of a worker.

    python -m videoserve.worker [PLACE]

reads its settings from the environment; PLACE counts the workers of a server from 0 and says whose devices are whose.
Exit codes: 0 after SIGTERM (running jobs are checkpointed and handed back), 1 when the engine broke or too many ranks
were lost, 2 when the settings or the model cannot be used.
"""

import logging
import os
import sys
from multiprocessing import forkserver

from videoserve.config import EXIT_REFUSED, Settings, load_settings
from videoserve.logs import start_logs

# What ranks are forked with: all that they import, so that to start one again takes no longer than to load the model.
PRELOADED = ["videoserve.worker.fork_server", "videoserve.worker.run", "torch.distributed.elastic.multiprocessing.api"]


def start(settings: Settings, place: int = 0) -> int:
    """Runs a worker; the exit code of its process. Nothing that starts and watches ranks is imported for one."""
    start_logs(settings.log_level, "worker")
    if settings.ranks == 1:
        from videoserve.worker.rank import own_settings
        from videoserve.worker.run import run_worker

        return run_worker(own_settings(settings, 0, place))
    forkserver.set_forkserver_preload(PRELOADED)
    # It imports while this process does.
    forkserver.ensure_running()
    from videoserve.worker.group import run_group

    return run_group(settings, place)


def main() -> None:
    """Ends the process without waiting for the engine's thread, which may be in the middle of a long step."""
    place = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    try:
        settings, _ = load_settings({})
    except ValueError as error:
        # Without settings there is no log yet.
        print(error, file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    code = start(settings, place)
    logging.shutdown()
    os._exit(code)
