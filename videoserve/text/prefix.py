"""What the beginning of a sequence is known by: a chain of hashes, one a block of tokens."""

import hashlib
from array import array
from collections.abc import Sequence

from videoserve.text.blocks import Hash
from videoserve.text.pools import BLOCK
from videoserve_cache.digest import digest


def root_of(model: str, tenant: str, adapters: Sequence[str] = ()) -> Hash:
    """What the chains of a model begin with: no other model, tenant or set of adapters shares a block."""
    return bytes.fromhex(digest("kv_prefix", 1, {"model": model, "tenant": tenant, "adapters": list(adapters)}))


def extend(hashes: list[Hash], root: Hash, tokens: Sequence[int], upto: int) -> None:
    """Appends the hashes of the whole blocks within the first `upto` tokens that `hashes` does not hold yet."""
    for i in range(len(hashes), upto // BLOCK):
        before = hashes[-1] if hashes else root
        content = array("q", tokens[i * BLOCK : (i + 1) * BLOCK]).tobytes()
        hashes.append(hashlib.sha256(before + content).digest())
