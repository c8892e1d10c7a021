"""The index of what is kept between requests: on Redis, without bytes; needs no torch."""

from videoserve_cache.index.index import Index
from videoserve_cache.index.key import KINDS, Class, Key
from videoserve_cache.index.link import Away, Link

__all__ = ["KINDS", "Away", "Class", "Index", "Key", "Link"]
