"""The adapters of a data folder, without a server: the same answers as its REST calls give."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from videoserve.api.adapter_schemas import lora_object
from videoserve.api.auth import LOCAL_TENANT
from videoserve.config import Settings
from videoserve.errors import ServeError
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.storage.adapter_names import scope_of
from videoserve.storage.adapters import Offer
from videoserve.storage.open_adapters import open_adapters
from videoserve.storage.shipped import ship
from videoserve.types import LoraAsk
from videoserve_lora.adapter import Adapter
from videoserve_lora.canonical import opened
from videoserve_lora.check import checked
from videoserve_lora.source import Expert, Source
from videoserve_lora.store import sha256


class LocalAdapters:
    """Those of this machine's user. ValueError for a model that cannot be used; calls raise ServeError.

    As a context: files that `ask` has brought in are gone after it.
    """

    def __init__(self, settings: Settings):
        model = resolve_model(settings.model)
        self.adapters = open_adapters(settings, model, ModelCard.read(model).name)
        ship(self.adapters, model)
        self._brought: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for digest in self._brought:
            self.adapters.store.discard(digest)

    def lora_add(self, files: Mapping[str, Path], fields: Mapping[str, Any]) -> dict[str, Any]:
        """As POST /v1/loras: `file`, and `file_low` of a pair; fields that are not said are not there."""
        offer = Offer(
            name=fields["name"],
            sources=self.sources(files, fields.get("target"), fields.get("alpha")),
            files=[{"sha256": sha256(path), "bytes": path.stat().st_size} for path in files.values()],
            steps=fields.get("steps"),
            allow_unused=frozenset(fields.get("allow_unused", ())),
            replace=fields.get("replace", False),
        )
        return lora_object(self.adapters.add(scope_of(LOCAL_TENANT), offer)[0])

    def loras(self) -> Iterator[dict[str, Any]]:
        return map(lora_object, self.adapters.list(LOCAL_TENANT))

    def lora(self, reference: str) -> dict[str, Any]:
        return lora_object(self.adapters.find(LOCAL_TENANT, reference))

    def lora_delete(self, reference: str) -> None:
        self.adapters.remove(LOCAL_TENANT, reference)

    def lora_verify(self, reference: str) -> dict[str, Any]:
        """Against the model on this machine's disk; no worker is asked."""
        found = self.adapters.find(LOCAL_TENANT, reference)
        self.adapters.verify(found)
        return lora_object(found) | {"model": self.adapters.target.name}

    def ask(self, reference: str, scale: float) -> LoraAsk:
        """What `--lora` names: a file, or an adapter of the data folder."""
        path = Path(reference)
        if path.is_file():
            ask, new = self.adapters.bring(Offer(name=path.name, sources=[Source(path=path)]), scale=scale)
            if new and ask.digest is not None:
                self._brought.append(ask.digest)
            return ask
        return self.adapters.ask(LOCAL_TENANT, reference, scale=scale)

    @contextmanager
    def opened(
        self, source: str, low: Path | None, target: str | None, alpha: float | None, allow_unused: Collection[str]
    ) -> Iterator[Adapter]:
        """The adapter of a file or pair, checked in this process, or one of the data folder. Raises Refused."""
        path = Path(source)
        if path.is_file():
            files = {"file": path} | ({} if low is None else {"file_low": low})
            model, unused = self.adapters.target.target, frozenset(allow_unused)
            with checked(self.sources(files, target, alpha), model, allow_unused=unused) as found:
                yield found.adapter
        else:
            kept = self.adapters.find(LOCAL_TENANT, source)
            with opened(self.adapters.store.path(kept.version.digest)) as adapter:
                yield adapter

    def sources(self, files: Mapping[str, Path], target: str | None, alpha: float | None) -> list[Source]:
        """What the files are for, and what is said of them."""
        both: Expert | None = "both" if self.adapters.target.target.two_experts else None
        meant: dict[str | None, Expert | None] = {None: None, "all": both, "high": "high", "low": "low"}
        if target not in meant:
            raise ServeError(f"The target is {target!r}; it must be one of all, high, low.", status=422)
        if "file_low" in files:
            if target is not None:
                raise ServeError("The files of a pair are for high and low noise; say no target.", status=422)
            return [
                Source(path=files["file"], expert="high", alpha=alpha),
                Source(path=files["file_low"], expert="low", alpha=alpha),
            ]
        return [Source(path=files["file"], expert=meant[target], alpha=alpha)]
