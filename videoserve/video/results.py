"""Whole videos as entries of the cache: left by an engine that has made one, found where another was first."""

import logging
from collections.abc import Mapping
from typing import Any

from videoserve.errors import ServeError
from videoserve.planning.reuse import hit, missed, of_plan, passed_on
from videoserve.storage.files import FileStore
from videoserve.storage.finished import Finished, UnusableResultError
from videoserve.types import ANY_JOB, Event, Output
from videoserve.video.kept import Kept, forget
from videoserve.video.run import Run

log = logging.getLogger(__name__)


def leave_result(
    run: Run, kept: Kept, files: FileStore, outputs: Mapping[str, Output], receipt: dict[str, Any]
) -> None:
    """Leaves the files of a finished run, with what its receipt says, and waits for all else that it has left.

    Whoever has heard that a job is done finds what it made.
    """
    kept.settle()
    key = kept.key("result", run)
    if key is None or kept.cache is None or not kept.exact(run):
        return
    try:
        contents = {output.sha256: files.read(output.sha256) for output in outputs.values()}
    except ServeError as error:
        # Deleted with another video of the same bytes, or out of reach: that the worker sees to, and mends.
        log.warning("a finished video is not kept for others", extra={"job": run.id, "reason": error.message})
        return
    finished = Finished(outputs=outputs, receipt=receipt, adjustments=tuple(run.record.adjustments), files=contents)
    # What it took to make it, also where most of that was an earlier request's work.
    cost_s = receipt["total_s"] + receipt["reuse"]["saved_s"]
    kept.cache.put(key, finished.pack(), about={"job": run.id}, cost_s=cost_s, cls="E0")


def take_result(run: Run, kept: Kept, files: FileStore) -> list[Event]:
    """What to tell of a run whose very video was made before, to its end; nothing when it was not."""
    key = kept.key("result", run)
    found = None if key is None or kept.cache is None else kept.cache.get(key)
    if key is not None and found is None:
        run.record.reuse.append(missed("result"))
    if found is None or key is None or kept.cache is None:
        return []
    with found:
        try:
            finished = Finished.unpack(found.content)
        except UnusableResultError as error:
            log.warning("an entry of the cache is not one", extra={"reason": str(error)})
            forget(kept.cache, key)
            return []
        for content in finished.files.values():
            files.put(bytes(content))
    entry = hit("result", cls=found.cls, tier=found.tier, age_s=found.age_s, size=found.size, saved_s=found.cost_s)
    told = of_plan(finished.receipt, run.job.plan, finished.adjustments)
    receipt = passed_on(told, run.id, entry)
    run.stage = "done"
    return [
        *(Event(job_id=run.id, kind="adjusted", data={"sentence": said}) for said in finished.adjustments),
        done(run, finished.outputs, receipt),
    ]


def done(run: Run, outputs: Mapping[str, Output], receipt: dict[str, Any]) -> Event:
    """The end of a run, with the receipt of jobs that asked for the same video and waited for this one."""
    size = sum(output.bytes for output in outputs.values())
    entry = hit("result", cls="E0", tier="twin", age_s=0.0, size=size, saved_s=receipt["total_s"])
    told = {variant: output.to_dict() for variant, output in outputs.items()}
    data = {"outputs": told, "receipt": receipt, "twin": passed_on(receipt, ANY_JOB, entry)}
    return Event(job_id=run.id, kind="done", data=data)
