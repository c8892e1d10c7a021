"""Where the bytes lie that are kept between requests: device, memory, disk, peers; needs no torch."""

from videoserve_cache.index.key import Key
from videoserve_cache.index.link import Away
from videoserve_cache.tiers.hit import Hit
from videoserve_cache.tiers.limits import Limits
from videoserve_cache.tiers.shared import SharedCache

__all__ = ["Away", "Hit", "Key", "Limits", "SharedCache"]
