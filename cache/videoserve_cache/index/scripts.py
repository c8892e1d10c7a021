"""The calls of the index: each .lua file beside this one is one atomic call."""

import json
from typing import Final

from videoserve_cache.index.key import KINDS
from videoserve_cache.index.keys import KEYS
from videoserve_cache.index.script import Script, read

NAMES: Final = (
    "lookup",
    "commit",
    "place",
    "trim",
    "lost",
    "touch",
    "beat",
    "known",
    "residents",
    "pin",
    "drop",
    "positions",
    "entries",
    "stats",
)

# What they have in common, in the order in which it builds on each other.
SHARED: Final = ("shared.lua", "leaving.lua", "room.lua")

_FRAME: Final = """
local K = {%(keys)s}
local KINDS = {%(kinds)s}
local p = cjson.decode(ARGV[1])
%(shared)s
local function answer()
%(body)s
end
return cjson.encode(answer())
"""


def read_scripts() -> dict[str, Script]:
    """All calls by name, each framed with the key table and what they share."""
    kinds = ", ".join(map(json.dumps, KINDS))
    return read("videoserve_cache.index", NAMES, shared=SHARED, frame=_FRAME, keys=KEYS, kinds=kinds)
