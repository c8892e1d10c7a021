-- One round trip a lookup, and nothing written: a store that syncs every write would make each of them wait for a disk.
-- p: name, tenant, node
local entry = call('HMGET', K.entry .. p.name, 'sha', 'size', 'about', 'cost', 'class', 'at', 'tenant', 'shared')
if not entry[1] or (entry[7] ~= p.tenant and entry[8] ~= '1') then
  return {}
end
local here, peers, asked = {}, {}, {}
for _, at in ipairs(replicas(entry[1])) do
  local tier, node = at[1], at[2]
  if node == p.node then
    here[#here + 1] = tier
  elseif not asked[node] then
    asked[node] = true
    local address = call('HGET', K.node .. node, 'address')
    if address then
      peers[#peers + 1] = {node, address}
    end
  end
end
return {
  sha = entry[1], size = tonumber(entry[2]), about = entry[3], cost = tonumber(entry[4]), class = entry[5],
  age = now() - entry[6], here = here, peers = peers,
}
