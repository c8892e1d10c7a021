"""What a receipt says of what was not computed again."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

# The letter of a step that an earlier request has computed.
KEPT = "K"
# That of a step in whose place the video of another, similar request was taken.
NEAR = "A"


def told(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The receipt's `reuse`: entries that were looked for, each with its kind and, where it was hit, its class, tier,
    age in seconds, bytes and the seconds that it took to compute; bytes by tier and seconds saved of all of them."""
    hits = [entry for entry in entries if entry["hit"]]
    moved: dict[str, int] = {}
    for hit in hits:
        moved[hit["tier"]] = moved.get(hit["tier"], 0) + hit["bytes"]
    return {
        "entries": [dict(entry) for entry in entries],
        "bytes": moved,
        "saved_s": round(sum(hit["saved_s"] for hit in hits), 4),
    }


def hit(kind: str, *, cls: str, tier: str, age_s: float, size: int, saved_s: float, **more: Any) -> dict[str, Any]:
    """An entry that was found; `more` is what else there is to say of it."""
    found = {"kind": kind, "hit": True, "class": cls, "tier": tier, "age_s": round(age_s, 3), "bytes": size}
    return found | {"saved_s": round(saved_s, 4)} | more


def missed(kind: str) -> dict[str, Any]:
    return {"kind": kind, "hit": False}


def of_plan(receipt: Mapping[str, Any], plan: Mapping[str, Any], adjusted: Sequence[str]) -> dict[str, Any]:
    """A receipt with what was asked and changed by another plan that makes the same video; `adjusted` is what the
    engine told of it."""
    cache = {**receipt["cache"], "asked": plan["cache"]}
    return {**receipt, "adjustments": [*plan["adjustments"], *adjusted], "cache": cache}


def passed_on(receipt: Mapping[str, Any], job: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt of a job that got the video of another one, whose receipt is given, by the entry `found`."""
    now = time.time()
    steps = len(receipt["steps"])
    return {
        **receipt,
        "job": job,
        "steps": KEPT * steps,
        "batch": [0] * steps,
        "resumed_from": [],
        "reuse": told([{**found, "job": receipt["job"], "steps": receipt["steps"]}]),
        "stages": {},
        "total_s": 0.0,
        "peak_memory_bytes": 0,
        "started_at": now,
        "finished_at": now,
    }
