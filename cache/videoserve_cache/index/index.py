"""The index as its node sees it: which entries there are, where their bytes lie, and what leaves when room is needed.

Every call may raise Away.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from videoserve_cache.index.entry import Entry, Peer
from videoserve_cache.index.key import KINDS, Key
from videoserve_cache.index.link import Link
from videoserve_cache.index.touches import Told

# A script holds up everybody else who asks Redis: what may be long goes in pieces.
PIECE: Final = 50

# Files to delete: tier and sha256 of each.
Trash = list[tuple[str, str]]


class Index:
    """`node` is the machine's name in the index; `holder` this process' in pins."""

    def __init__(self, link: Link, node: str, holder: str):
        self.link = link
        self.node = node
        self.holder = holder

    def lookup(self, key: Key) -> Entry | None:
        """One round trip, which writes nothing."""
        answer = self.link.call("lookup", quick=True, name=key.name, tenant=key.tenant, node=self.node)
        if not answer:
            return None
        return Entry(
            sha256=answer["sha"],
            size=answer["size"],
            about=json.loads(answer["about"]),
            cost_s=answer["cost"],
            cls=answer["class"],
            age_s=answer["age"],
            here=tuple(answer["here"]),
            peers=tuple(Peer(node=node, address=address) for node, address in answer["peers"]),
        )

    def commit(self, key: Key, entry: Entry, limits: Mapping[str, int]) -> tuple[list[str], Trash]:
        """Makes the entry ready, its bytes in the tiers of `limits` (bytes each may hold), where its file is already.

        The tiers that have room for it, and files to delete. No tier when none has room;
        when the digest has other bytes already ("conflicts" among the counts). `about` may hold prefix (a digest) and
        position (int) for `positions`.
        """
        answer = self.link.call(
            "commit",
            kind=key.kind,
            digest=key.digest,
            tenant=key.tenant,
            shared=key.shared,
            model=key.model,
            loras=key.loras,
            sha=entry.sha256,
            size=entry.size,
            about=json.dumps(entry.about),
            cost=entry.cost_s,
            cls=entry.cls,
            node=self.node,
            tiers=limits,
            prefix=entry.about.get("prefix"),
            position=entry.about.get("position"),
        )
        return [*answer.get("placed", ())], _trash(answer)

    def place(self, sha: str, tier: str, limit: int) -> tuple[bool, Trash]:
        """A copy of known bytes lies in another tier of this node. False when it cannot stay; files to delete."""
        answer = self.link.call("place", sha=sha, node=self.node, tier=tier, limit=limit)
        return answer["placed"], _trash(answer)

    def trim(self, tier: str, limit: int, spare: int) -> tuple[bool, Trash]:
        """Evicts some, as far as pins allow, of what is beyond `limit` bytes, or beyond what the disk has to spare.

        spare   bytes, negative when some should be given back. True when there is more to evict; files to delete.
        """
        answer = self.link.call("trim", node=self.node, tier=tier, limit=limit, spare=spare, most=PIECE)
        return answer["more"], _trash(answer)

    def lost(self, tier: str, shas: Iterable[str], *, corrupt: bool = False) -> None:
        """These files of this node are not there, or not what they should be."""
        for piece in _pieces([*shas]):
            self.link.call("lost", node=self.node, tier=tier, shas=piece, corrupt=corrupt)

    def touch(self, told: Told, pins: Sequence[str], pin_s: float) -> None:
        """What this process used and counted; and what it is using, which nobody evicts for `pin_s` seconds."""
        self.link.call("touch", uses={}, counts=told.counts, pins=pins, holder=self.holder, pin_s=pin_s)
        for shas in _pieces([*told.uses]):
            uses = {sha: told.uses[sha] for sha in shas}
            self.link.call("touch", uses=uses, counts={}, pins=(), holder=self.holder, pin_s=pin_s)

    def beat(self, address: str | None, life_s: float, forget_s: float) -> tuple[Trash, int, bool]:
        """This node lives for another `life_s` seconds.

        Files to delete; how often entries were dropped; whether the index had not heard of this node before.
        """
        answer = self.link.call("beat", node=self.node, address=address, life_s=life_s, forget_s=forget_s, limit=PIECE)
        return _trash(answer), answer["drops"], answer["new"]

    def strangers(self, tier: str, shas: Sequence[str]) -> list[str]:
        """Those of these files of this node that the index does not know."""
        found = []
        for piece in _pieces(shas):
            found += self.link.call("known", node=self.node, tier=tier, shas=piece)["strangers"]
        return found

    def residents(self, tier: str) -> Iterator[str]:
        """sha256 of each file that this node should have; some may come twice."""
        cursor = "0"
        while True:
            answer = self.link.call("residents", node=self.node, tier=tier, cursor=cursor)
            yield from answer["shas"]
            cursor = answer["cursor"]
            if cursor == "0":
                return

    def pin(self, digest: str, ttl_s: float, holder: str | None) -> bool:
        """False when there is no such entry. 0 seconds end the pin, which is this process' unless `holder` is given."""
        return bool(self.link.call("pin", digest=digest, holder=holder or self.holder, pin_s=ttl_s)["pinned"])

    def drop(self, by: str, value: str) -> int:
        """Forgets all entries of a model, lora, tenant, kind, or the one of a digest. How many there were."""
        total = 0
        while dropped := self.link.call("drop", by=by, value=value, limit=PIECE)["dropped"]:
            total += dropped
        return total

    def forget(self, digest: str) -> None:
        """The one entry is of no use any more. What processes remember of it is right, and they may keep that."""
        self.link.call("drop", by="digest", value=digest, limit=1, quiet=True)

    def positions(self, kind: str, prefix: str) -> list[int]:
        """The positions, ascending, that were put with this prefix."""
        return [*self.link.call("positions", kind=kind, prefix=prefix)["positions"]]

    def entries(
        self, *, after: str | None, limit: int, kind: str | None, tenant: str | None, model: str | None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """A page of entries by kind and digest, and what to give as `after` for the next one, None at the end."""
        kinds = KINDS if kind is None else (kind,)
        answer = self.link.call("entries", kinds=kinds, limit=limit, after=after, tenant=tenant, model=model)
        return [_row(*row) for row in answer["rows"]], answer["after"] or None

    def stats(self) -> dict[str, Any]:
        """entries by kind, nodes with their tiers, counts since the index began."""
        return self.link.call("stats")


def _trash(answer: Mapping[str, Any]) -> Trash:
    return [(tier, sha) for tier, _, sha in (text.partition(" ") for text in answer["trash"])]


def _pieces(shas: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(shas), PIECE):
        yield shas[start : start + PIECE]


def _row(
    sha: str, size: str, about: str, cost: str, cls: str, age: str, model: str, loras: str, tenant: str, shared: str,
    kind: str, digest: str, freq: int, replicas: list[list[str]], pinned: bool,
) -> dict[str, Any]:  # fmt: skip
    return {
        "kind": kind,
        "digest": digest,
        "sha256": sha,
        "size": int(size),
        "about": json.loads(about),
        "cost_s": float(cost),
        "class": cls,
        "age_s": float(age),
        "model": model,
        "loras": loras.split(),
        "tenant": tenant,
        "shared": shared == "1",
        "uses": freq,
        "pinned": pinned,
        "replicas": [{"tier": tier, "node": node} for tier, node in replicas],
    }
