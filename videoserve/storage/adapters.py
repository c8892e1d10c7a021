"""The adapters of a data folder, as tenants have them: each sees its own and those that are everybody's."""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from videoserve.errors import BadAdapter, Conflict, InvalidField, ServeError
from videoserve.storage.adapter_names import DIGEST, SHARED, Named, check_name, look_up, missing, named, scope_of
from videoserve.storage.adapter_target import AdapterTarget
from videoserve.types import ExpertTarget, LoraAsk
from videoserve_lora.apart import Verdict, check_apart
from videoserve_lora.label import Label, Taken
from videoserve_lora.limits import Limits
from videoserve_lora.refused import Refused
from videoserve_lora.source import Source
from videoserve_lora.store import AdapterStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Files that are to become an adapter, and what is said of them. `steps`: of a few-step adapter, how many."""

    name: str
    sources: Sequence[Source]
    files: Sequence[dict[str, Any]] = ()
    steps: int | None = None
    allow_unused: frozenset[str] = frozenset()
    replace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What the adapters of one scope may take: bytes, and how many names there may be."""

    size: int
    names: int


class Adapters:
    """Calls block: on the store, and `add` on a process that checks the files. Several processes may share the store.

    A reference is a name, an alias, an id or a digest; a name or an id may end in @number, a version of it.
    """

    def __init__(self, store: AdapterStore, target: AdapterTarget, quota: Quota, *, file_bytes: int):
        self.store = store
        self.target = target
        self.quota = quota
        self._limits = Limits(file_bytes=file_bytes)

    def add(self, scope: str, offer: Offer) -> tuple[Named, bool]:
        """The adapter, and whether it is new; it is safe on the disk then. The same again is what it already was.

        Raises InvalidField for a name that is none, BadAdapter, Conflict for a name of another adapter, ServeError 429.
        """
        check_name(offer.name)
        with self._checked(offer) as (out, verdict):
            size = out.stat().st_size
            about = {
                "bytes": size,
                "base_model": self.target.name,
                "fits": self.target.digest,
                "steps": offer.steps,
                "files": list(offer.files),
                "report": verdict.report,
            }
            with self._alone():
                self._check_quota(scope, offer.name, verdict.digest, size)
                new = self._check_known(scope, offer, verdict.digest)
                self.store.put(out)
                try:
                    version = self.store.label(scope, offer.name, verdict.digest, about=about, replace=offer.replace)
                except Taken as taken:
                    raise Conflict(str(taken), code="name_taken", param="name") from None
        return named(self.store.get(scope, offer.name), version, self.store.labels(scope)), new

    def bring(self, offer: Offer, *, scale: float = 1.0) -> tuple[LoraAsk, bool]:
        """An adapter for one job, under no name, and whether it is new: whoever brought it discards it then.

        A sweep takes what is left behind all the same. Raises BadAdapter.
        """
        with self._checked(offer) as (out, verdict):
            new = not self.store.has(verdict.digest)
            self.store.put(out)
        parts = tuple(verdict.report["parts"])
        return LoraAsk(name=offer.name, scale=scale, digest=verdict.digest, parts=parts, steps=offer.steps), new

    def find(self, tenant: str, reference: str) -> Named:
        """Of what the tenant may use: its own first, then what is everybody's. Raises NotFound."""
        for scope in (scope_of(tenant), SHARED):
            found = look_up(self.store, scope, reference)
            if found is not None:
                return found
        raise missing(reference)

    def ask(self, tenant: str, reference: str, *, scale: float = 1.0, target: ExpertTarget = "all") -> LoraAsk:
        """What a request that names it means now. Raises NotFound, InvalidField for one that fits another model."""
        found = self.find(tenant, reference)
        about = found.version.about
        if about["fits"] != self.target.digest:
            raise InvalidField(
                "lora", f"The adapter {found.label.name!r} is for {about['base_model']}; this is {self.target.name}."
            )
        return LoraAsk(
            name=f"{found.label.name}@{found.version.number}",
            scale=scale,
            target=target,
            digest=found.version.digest,
            parts=tuple(about["report"]["parts"]),
            steps=about["steps"],
        )

    def keep(self, digest: str) -> None:
        """No sweep that is under way takes it from the caller, who has just held it. Raises NotFound."""
        try:
            self.store.keep(digest)
        except KeyError:
            raise missing(digest) from None

    def list(self, tenant: str) -> list[Named]:
        """All that the tenant may use, the latest first."""
        found: list[Named] = []
        for scope in (scope_of(tenant), SHARED):
            labels = self.store.labels(scope)
            found += [named(label, label.versions[-1], labels) for label in labels if label.alias_of is None]
        return sorted(found, key=lambda each: (-each.label.versions[0].added, each.id))

    def remove(self, tenant: str, reference: str) -> str:
        """Forgets a name with its versions and aliases, or an alias alone; the id or the alias that is gone.

        Jobs that have it keep it. Raises NotFound, ServeError 403 for what is everybody's.
        """
        scope = scope_of(tenant)
        with self._alone():
            found = self.find(tenant, reference)
            if reference in found.aliases and not found.shared:
                self.store.remove(scope, reference)
                return reference
            self._refuse_shared(found)
            if "@" in reference or DIGEST.fullmatch(reference):
                raise InvalidField("lora_id", f"{reference[:80]!r} is one version; only an adapter as a whole goes.")
            # The name last: what is left of a removal that was cut short can be removed again.
            for name in (*found.aliases, found.label.name):
                self.store.remove(scope, name)
        return found.id

    def alias(self, tenant: str, reference: str, alias: str) -> Named:
        """Lets `alias` stand for an adapter, or for one version of it. Raises NotFound, Conflict, InvalidField."""
        check_name(alias, "alias")
        found = self.find(tenant, reference)
        self._refuse_shared(found)
        scope, of = found.label.scope, found.label.name
        number = f"@{found.version.number}" if "@" in reference else ""
        with self._alone():
            self._check_names(self.store.labels(scope), alias)
            try:
                self.store.alias(scope, alias, of + number)
            except Taken as taken:
                raise Conflict(str(taken), code="name_taken", param="alias") from None
            except KeyError:
                raise missing(reference) from None
        return named(found.label, found.version, self.store.labels(scope))

    def verify(self, adapter: Named) -> None:
        """Raises Conflict when its bytes are not those that were checked, and BadAdapter when the model is another."""
        if not self.store.whole(adapter.version.digest):
            raise Conflict(f"The file of {adapter.label.name!r} is damaged; upload it again.", code="adapter_damaged")
        self.target.check(self.store.path(adapter.version.digest))

    @contextmanager
    def _checked(self, offer: Offer) -> Iterator[tuple[Path, Verdict]]:
        """The canonical file, which is gone after the context where it was not put into the store."""
        out = self.store.temporary()
        try:
            verdict = check_apart(
                offer.sources, self.target.measured, out, allow_unused=offer.allow_unused, limits=self._limits
            )
            self.target.admit(out)
            yield out, verdict
        except Refused as refused:
            raise BadAdapter(refused.sentence, refused.keys) from None
        finally:
            out.unlink(missing_ok=True)

    def _check_known(self, scope: str, offer: Offer, digest: str) -> bool:
        """Whether it would be new. Raises Conflict for the same adapter of which something else is said."""
        found = look_up(self.store, scope, offer.name)
        if found is None or found.version.digest != digest or found.label.name != offer.name:
            return True
        steps = found.version.about["steps"]
        if steps != offer.steps:
            raise Conflict(
                f"This adapter is here as {offer.name!r} with steps {steps}, not {offer.steps}; delete it first.",
                code="name_taken",
                param="steps",
            )
        return False

    def _check_quota(self, scope: str, name: str, digest: str, size: int) -> None:
        labels = self.store.labels(scope)
        held = {version.digest: version.about["bytes"] for label in labels for version in label.versions}
        after = sum({**held, digest: size}.values())
        if digest not in held and after > self.quota.size:
            raise ServeError(
                f"With this one your adapters would take {after} bytes; at most {self.quota.size} are allowed: "
                f"delete some.",
                status=429,
                code="adapter_quota",
            )
        self._check_names(labels, name)

    def _check_names(self, labels: Sequence[Label], name: str) -> None:
        if len(labels) >= self.quota.names and all(label.name != name for label in labels):
            raise ServeError(
                f"You have {len(labels)} adapters and aliases; at most {self.quota.names} are allowed: delete some.",
                status=429,
                code="adapter_quota",
            )

    def _refuse_shared(self, adapter: Named) -> None:
        if adapter.shared:
            raise ServeError(
                f"The adapter {adapter.label.name!r} is everybody's and comes with the model; it cannot be changed.",
                status=403,
                code="shared_adapter",
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One change of names at a time, so that nobody gets past a quota that two would exceed together."""
        with (self.store.root / "names.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
