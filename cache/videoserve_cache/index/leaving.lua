-- How replicas and entries leave the index. Follows shared.lua in every call.

-- The file is left to whoever beats for the node next: nobody here can delete it.
local function remove_replica(sha, tier, node)
  if call('HDEL', K.loc .. sha, replica(node, tier)) == 0 then
    return
  end
  local at = node .. ':' .. tier
  call('ZREM', K.queue .. at, sha)
  call('HINCRBY', K.bytes .. at, 'bytes', 0 - call('HGET', K.loc .. sha, 'size'))
  call('SADD', K.trash .. node, tier .. ' ' .. sha)
end

local function remove_entry(name)
  local at = call('HMGET', K.entry .. name, 'sha', 'model', 'loras', 'tenant', 'prefix')
  local kind, digest = name:match('^([^:]+):(.+)$')
  call('ZREM', K.kind .. kind, digest)
  call('SREM', K.model .. at[2], name)
  for lora in at[3]:gmatch('%S+') do
    call('SREM', K.lora .. lora, name)
  end
  call('SREM', K.tenant .. at[4], name)
  if at[5] then
    call('ZREM', K.prefix .. kind .. ':' .. at[5], digest)
  end
  call('SREM', K.of .. at[1], name)
  call('DEL', K.entry .. name)
  return at[1]
end

-- Bytes without a replica take their entries along, and bytes without an entry their replicas.
local function tidy(sha)
  local found = replicas(sha)
  if #found > 0 and call('EXISTS', K.of .. sha) == 1 then
    return
  end
  for _, at in ipairs(found) do
    remove_replica(sha, at[1], at[2])
  end
  for _, name in ipairs(call('SMEMBERS', K.of .. sha)) do
    remove_entry(name)
  end
  call('DEL', K.loc .. sha)
end
