"""The adapters that come with the demo model: everybody's, under the names of their files."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from videoserve.planning.card import DEMO
from videoserve.storage.adapter_names import SHARED, look_up
from videoserve.storage.adapters import Adapters, Offer
from videoserve_lora.source import Source
from videoserve_lora.store import sha256


def ship(adapters: Adapters, model: Path) -> None:
    """What comes with `model` is there afterwards, and what came with another one is not. Twice is once.

    Raises ServeError, and RuntimeError when a file that we ship is not an adapter.
    """
    files = sorted((model.parent / "loras").glob("*.safetensors")) if model == DEMO else []
    for label in adapters.store.labels(SHARED):
        if label.name not in {file.stem for file in files}:
            # Another server on the same adapters may have done so.
            with suppress(KeyError):
                adapters.store.remove(SHARED, label.name)
    for file in files:
        told = {"sha256": sha256(file), "bytes": file.stat().st_size}
        if not _here(adapters, file.stem, told):
            adapters.add(SHARED, Offer(name=file.stem, sources=[Source(path=file)], files=[told], replace=True))


def _here(adapters: Adapters, name: str, told: dict[str, Any]) -> bool:
    """Whether this very file was checked for this very model before, and what is kept of it is whole."""
    found = look_up(adapters.store, SHARED, name)
    if found is None or found.version.about["files"] != [told]:
        return False
    if found.version.about["fits"] != adapters.target.digest:
        return False
    digest = found.version.digest
    return adapters.store.has(digest) and adapters.store.whole(digest)
