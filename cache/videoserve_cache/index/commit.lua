-- The files are there under their last names; from here on the entry is ready, or it never was.
-- p: kind, digest, tenant, shared, model, loras [], sha, size, about, cost, cls, node, tiers {tier = limit},
--    prefix?, position?
local name = p.kind .. ':' .. p.digest

-- The caller's files are of no use unless somebody else refers to them.
local function refuse()
  for tier in pairs(p.tiers) do
    if call('HEXISTS', K.loc .. p.sha, replica(p.node, tier)) == 0 then
      call('SADD', K.trash .. p.node, tier .. ' ' .. p.sha)
    end
  end
  count('conflicts')
  return {trash = trash_of(p.node, 100)}
end

local first = call('HMGET', K.entry .. name, 'sha', 'tenant', 'shared')
if first[1] then
  local theirs = first[2] ~= p.tenant and first[3] ~= '1'
  if theirs or (first[1] ~= p.sha and living(first[1])) then
    return refuse()
  end
  remove_entry(name)
  if first[1] ~= p.sha then
    tidy(first[1])
  end
end

call('HSET', K.entry .. name, 'sha', p.sha, 'size', p.size, 'about', p.about, 'cost', exactly(p.cost),
  'class', p.cls, 'at', exactly(now()), 'model', p.model, 'loras', table.concat(p.loras, ' '), 'tenant', p.tenant,
  'shared', p.shared and 1 or 0)
call('ZADD', K.kind .. p.kind, 0, p.digest)
call('SADD', K.model .. p.model, name)
for _, lora in ipairs(p.loras) do
  call('SADD', K.lora .. lora, name)
end
call('SADD', K.tenant .. p.tenant, name)
if p.prefix then
  call('HSET', K.entry .. name, 'prefix', p.prefix)
  call('ZADD', K.prefix .. p.kind .. ':' .. p.prefix, p.position, p.digest)
end
call('SADD', K.of .. p.sha, name)
call('HSET', K.loc .. p.sha, 'size', p.size, 'cost', exactly(p.cost))
call('HSETNX', K.loc .. p.sha, 'freq', 1)

local placed = {}
for tier, limit in pairs(p.tiers) do
  if place(p.sha, tier, p.node, limit) then
    placed[#placed + 1] = tier
  end
end
tidy(p.sha)
return {placed = placed, trash = trash_of(p.node, 100)}
