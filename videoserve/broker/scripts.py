"""The transitions: each .lua file beside this one is one atomic call."""

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Final

from videoserve.broker.keys import KEYS

NAMES: Final = (
    "hold",
    "submit",
    "claim",
    "renew",
    "record",
    "finish",
    "fail",
    "release",
    "cancel",
    "delete",
    "reap",
    "expire",
    "list",
    "places",
    "webhook_due",
    "webhook_settle",
)

# What they have in common, in the order in which it builds on each other.
SHARED: Final = ("shared.lua", "endings.lua", "turns.lua")

# A client whose connection dies cannot know whether its call was applied, so it calls again with the same nonce.
# The second call gets the first one's answer. Refusals changed nothing and are computed anew; so are empty answers,
# which leave nothing a repetition could do again.
_FRAME: Final = """
local K = {%(keys)s}
local nonce = ARGV[1]
local p = cjson.decode(ARGV[2])
if nonce ~= '' then
  local answered = redis.call('GET', K.once .. nonce)
  if answered then return answered end
end
%(shared)s
local function transition()
%(body)s
end
local answer = transition()
local text = cjson.encode(answer)
if nonce ~= '' and next(answer) and not answer.error then
  redis.call('SET', K.once .. nonce, text, 'EX', 60)
end
return text
"""


@dataclass(frozen=True, slots=True)
class Script:
    """Lua text and the SHA-1 under which Redis caches it."""

    text: str
    sha1: str


def read_scripts() -> dict[str, Script]:
    """All transitions by name, each framed with the key table and what they share."""
    folder = resources.files(__package__)
    shared = "".join((folder / name).read_text() for name in SHARED)
    keys = ", ".join(f"{name} = {json.dumps(key)}" for name, key in KEYS.items())
    scripts = {}
    for name in NAMES:
        text = _FRAME % {"keys": keys, "shared": shared, "body": (folder / f"{name}.lua").read_text()}
        scripts[name] = Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
    return scripts
