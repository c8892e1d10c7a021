-- A tier may hold less than it does, or its disk has less to spare. p: node, tier, limit, spare (bytes, may be negative), most
local at = p.node .. ':' .. p.tier
local bytes = bytes_of(at)
local leaving, enough = victims(at, bytes - math.min(p.limit, bytes + p.spare), nil, p.most)
evict(leaving, p.tier, p.node)
return {more = not enough and #leaving > 0, trash = trash_of(p.node, 1000)}
