"""The transitions: each .lua file beside this one is one atomic call."""

from typing import Final

from videoserve.broker.keys import KEYS
from videoserve_cache.index.script import Script, read

NAMES: Final = (
    "hold",
    "submit",
    "claim",
    "renew",
    "record",
    "tell",
    "finish",
    "fail",
    "release",
    "cancel",
    "delete",
    "reap",
    "strays",
    "expire",
    "list",
    "places",
    "webhook_due",
    "webhook_settle",
)

# What they have in common, in the order in which it builds on each other.
SHARED: Final = ("shared.lua", "twins.lua", "endings.lua", "turns.lua")

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


def read_scripts() -> dict[str, Script]:
    """All transitions by name, each framed with the key table and what they share."""
    return read("videoserve.broker", NAMES, shared=SHARED, frame=_FRAME, keys=KEYS)
