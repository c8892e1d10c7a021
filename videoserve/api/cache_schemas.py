"""What goes over the wire about the cache."""

from typing import Literal

from pydantic import BaseModel, Field


class Replica(BaseModel):
    node: str
    tier: str


class CacheEntry(BaseModel):
    object: Literal["cache.entry"]
    kind: str
    digest: str = Field(description="Names the entry; made of all that its content depends on.")
    sha256: str = Field(description="Of its bytes.")
    size: int = Field(description="In bytes.")
    cost_s: float = Field(description="Seconds that computing it took.")
    cls: str = Field(alias="class", description="E0 bit-identical, E1 the same mathematics, A approximate.")
    age_s: float
    model: str
    loras: list[str]
    tenant: str
    shared: bool = Field(description="Whether other tenants may have it.")
    uses: int
    pinned: bool
    replicas: list[Replica]


class CacheEntryList(BaseModel):
    object: Literal["list"]
    data: list[CacheEntry]
    has_more: bool
    first_id: str | None
    last_id: str | None = Field(description="What to give as `after` for the next page.")


class Tally(BaseModel):
    """Counts since the index began, of all processes of all nodes."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    saved_s: float = Field(default=0.0, description="Seconds that computing what was hit would have taken.")


class TierStats(BaseModel):
    bytes: int
    blobs: int


class NodeStats(BaseModel):
    alive: bool
    tiers: dict[str, TierStats]


class CacheStats(BaseModel):
    object: Literal["cache.stats"]
    total: Tally
    kinds: dict[str, Tally]
    entries: dict[str, int] = Field(description="By kind.")
    nodes: dict[str, NodeStats]
    counts: dict[str, float] = Field(description="Everything that is counted, by name, kind and tier.")


class PinnedEntry(BaseModel):
    object: Literal["cache.entry"]
    digest: str
    pinned: bool


class Dropped(BaseModel):
    object: Literal["cache.dropped"]
    dropped: int = Field(description="Entries that are forgotten, everywhere.")
