-- p: nothing
local kinds, nodes, counts = {}, {}, {}
for _, kind in ipairs(KINDS) do
  kinds[kind] = call('ZCARD', K.kind .. kind)
end
for _, node in ipairs(call('ZRANGE', K.nodes, 0, -1)) do
  local tiers = {}
  for _, tier in ipairs({'memory', 'disk'}) do
    local at = node .. ':' .. tier
    local bytes = tonumber(call('HGET', K.bytes .. at, 'bytes') or 0)
    tiers[tier] = {bytes = bytes, blobs = call('ZCARD', K.queue .. at)}
  end
  nodes[node] = {alive = call('EXISTS', K.node .. node) == 1, tiers = tiers}
end
local told = call('HGETALL', K.counts)
for i = 1, #told, 2 do
  counts[told[i]] = tonumber(told[i + 1])
end
return {entries = kinds, nodes = nodes, counts = counts}
