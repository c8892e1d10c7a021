"""Files and index agree: what the index does not know is deleted, and what is not there leaves the index."""

from videoserve_cache.tiers.node import Node


def reconcile(node: Node) -> None:
    """For the node's own tiers. Harmless while others of the node read and write. Raises Away."""
    grace_s = node.setup.limits.grace_s
    for tier, blobs in node.tiers.items():
        blobs.sweep(grace_s)
        node.index.lost(tier, (sha for sha in node.index.residents(tier) if not blobs.has(sha)))
        for sha in node.index.strangers(tier, [*blobs.older(grace_s)]):
            blobs.remove(sha)
        node.trim(tier)
