"""Children that end with their parent, even when the parent is killed with -9."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import parent_process

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None] | None:
    """A preexec_fn for subprocess: the kernel kills the child once the thread that made it is gone.

    So make children in a thread that lives as long as they should, which is the main thread. Only Linux can do this;
    elsewhere the answer is None, and a server killed with -9 leaves its children to be ended by hand.
    """
    if sys.platform != "linux":
        return None
    # Looked up here: between fork and exec nothing may be loaded.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before the line above.
        if os.getppid() != parent:
            os._exit(1)

    return before_exec


def bind_to_parent() -> None:
    """The same for this process, which cannot be made with a preexec_fn: multiprocessing makes it."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)
