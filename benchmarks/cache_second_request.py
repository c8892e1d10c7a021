"""What a request finds of an earlier one: its encode stage with everything new, and with another seed of the same.

    python benchmarks/cache_second_request.py [--rounds 8]

An engine with the settings of a server and a cache beside an embedded Redis. Each round has two prompts and a picture
that nobody has sent, then the same with another seed, then the very same again, which no device is asked for. Wall
time: of the encode stage as receipts tell it, and from end to end for the same again. Refuses to print a time when a
request found something else than it should, or when the same one gave other bytes.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image, ImageEnhance

from videoserve.broker import EmbeddedRedis
from videoserve.config import Settings
from videoserve.local.generate import make_job
from videoserve.planning.card import DEMO, resolve_model
from videoserve.storage.files import FileStore
from videoserve.storage.open_cache import GIB
from videoserve.types import Event
from videoserve.video.engine import VideoEngine
from videoserve.video.quiet import quiet
from videoserve_cache.tiers import Limits, SharedCache

PICTURE = DEMO.parent / "pictures" / "china.jpg"
NEW, SEED, SAME = "everything new", "another seed", "the same again"
FOUND: dict[str, set[str]] = {NEW: set(), SEED: {"text_emb", "img_cond"}, SAME: {"result"}}
SHARE, SAME_S = 0.05, 0.1


class Requests:
    """Requests to one engine; `taken` has seconds, of the encode stage but for the same again."""

    def __init__(self, data: Path, cache: SharedCache) -> None:
        self._settings, self._files, self._data = Settings(data=data, device="cpu"), FileStore(data / "files"), data
        self._engine = VideoEngine(self._settings, self._files, resolve_model("demo"), cache)
        self._engine.load()
        self.taken: dict[str, list[float]] = {NEW: [], SEED: [], SAME: []}

    def round(self, number: int) -> None:
        path = self._data / "picture.png"
        ImageEnhance.Brightness(Image.open(PICTURE)).enhance(0.7 + number / 40).save(path)
        picture, prompt = path.read_bytes(), f"the camera pans {number} times to the left"
        first = self._video(NEW, picture, prompt, seed=1)
        self._video(SEED, picture, prompt, seed=2)
        if self._video(SAME, picture, prompt, seed=1) != first:
            sys.exit("The same request gave other bytes: no time is worth printing.")

    def _video(self, name: str, picture: bytes, prompt: str, seed: int) -> str:
        fields = {"prompt": prompt, "negative_prompt": f"not {prompt}", "seed": seed}
        fields |= {"num_inference_steps": 4, "guidance_scale": 3.0}
        job = make_job(self._settings, self._files, picture, fields)
        told: list[Event] = []
        began = time.perf_counter()
        self._engine.admit(job, None)
        while self._engine.step(told.append):
            pass
        if told[-1].kind != "done":
            sys.exit(told[-1].data["message"])
        whole_s, receipt = time.perf_counter() - began, told[-1].data["receipt"]
        found = {entry["kind"] for entry in receipt["reuse"]["entries"] if entry["hit"]}
        if found != FOUND[name]:
            sys.exit(f"With {name}, {sorted(found)} was found: no time is worth printing.")
        self.taken[name].append(whole_s if name == SAME else receipt["stages"]["encode"])
        sha256: str = told[-1].data["outputs"]["video"]["sha256"]
        return sha256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    quiet()
    limits = Limits(memory_bytes=GIB, disk_bytes=GIB)
    with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder) / "redis") as redis:
        data = Path(folder)
        cache = SharedCache.open(redis.url, data / "cache", node="here", limits=limits, secret=b"s", address=None)
        requests = Requests(data, cache)
        for number in range(asked.rounds + 1):
            requests.round(number)
        cache.close()
    # What is done once in a process is done in the first round.
    medians = {name: statistics.median(seconds[1:]) for name, seconds in requests.taken.items()}
    print(f"{time.strftime('%Y-%m-%d')}, {asked.rounds} rounds, medians\n")
    for name, seconds in medians.items():
        print(f"{name:20}{1000 * seconds:9.1f} ms{seconds / medians[NEW]:9.1%}")
    if medians[SEED] > SHARE * medians[NEW]:
        sys.exit(f"\nAnother seed takes more than {SHARE:.0%} of the first request's encode stage.")
    if medians[SAME] > SAME_S:
        sys.exit(f"\nThe same request again takes more than {1000 * SAME_S:.0f} ms.")


if __name__ == "__main__":
    main()
