"""From an exception in the middle of a job to what its client reads."""

import torch

from videoserve.errors import JobFailed, ServeError
from videoserve.types import VideoPlan
from videoserve.video.memory import out_of_memory
from videoserve.video.run import Run
from videoserve.video.solver import UnusableSolverError


def failure_of(error: Exception, run: Run, device: torch.device) -> JobFailed:
    """The failure to report; `retry` where another attempt may end otherwise. Never a path or a trace."""
    if isinstance(error, JobFailed):
        return error
    if out_of_memory(error):
        return JobFailed("out_of_memory", memory_sentence(run.plan, device))
    if isinstance(error, UnusableSolverError):
        return JobFailed("invalid_value", str(error))
    if isinstance(error, ServeError):
        return JobFailed(error.code, error.message, retry=True)
    return JobFailed("internal_error", f"The engine failed in stage {run.stage}: {type(error).__name__}.", retry=True)


def memory_sentence(plan: VideoPlan, device: torch.device) -> str:
    where = "the graphics card" if device.type == "cuda" else "this machine"
    return (
        f"{plan.num_frames} frames of {plan.width}x{plan.height} need more memory than {where} has free; "
        "ask for a smaller size or fewer frames."
    )


def deadline_failure(over_s: float) -> JobFailed:
    return JobFailed("deadline_exceeded", f"The deadline passed {over_s:.1f} s ago and the video is not finished.")


def hopeless_failure(left_s: float, need_s: float) -> JobFailed:
    return JobFailed(
        "deadline_exceeded",
        f"The deadline is {left_s:.1f} s away and this video takes {need_s:.1f} s, so it was not begun.",
    )
