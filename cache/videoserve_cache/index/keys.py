"""Every key the index keeps in Redis. The Lua scripts see the same table as `K`, so no name is written twice.

A value that ends with ":" is a prefix, completed by what the comment names in braces. A name is "{kind}:{digest}" of an
entry. Entries are there when they are ready; one that turned out dead is removed.
"""

from typing import Final

KEYS: Final[dict[str, str]] = {
    # HASH {name}: sha, size, about (JSON), cost, class, at (seconds), model, loras, tenant, shared, prefix
    "entry": "e:",
    # HASH {sha256}: size, cost, freq, and a field "@{tier} {node}" for each replica; alive while the node is
    "loc": "loc:",
    # SET {sha256}: names of the entries that have these bytes
    "of": "of:",
    # ZSET {node}:{tier}: sha256 → GDSF priority
    "queue": "q:",
    # HASH {node}:{tier}: bytes, and floor: the priority of what was evicted last
    "bytes": "b:",
    # ZSET {sha256}: holder → end of its pin; the key expires with the last of them
    "pin": "pin:",
    # ZSET {kind}: digests, all of score 0, so that pages go by digest
    "kind": "idx:kind:",
    # SET {digest of the model}, {digest of the adapter}, {tenant}: names
    "model": "idx:model:",
    "lora": "idx:lora:",
    "tenant": "idx:tenant:",
    # ZSET {kind}:{prefix digest}: digests scored by their position
    "prefix": "idx:prefix:",
    # HASH {node}: address; expires when the node stops beating
    "node": "node:",
    # ZSET: nodes scored by their last beat
    "nodes": "nodes",
    # SET {node}: "{tier} {sha256}" of files that nobody refers to any more
    "trash": "trash:",
    # STRING: how often entries were dropped by hand, so that processes forget what they remember
    "drops": "drops",
    # HASH: counts of all nodes since the index began
    "counts": "counts",
}
