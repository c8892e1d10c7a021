-- GDSF: what is placed in a tier, and what makes room for it. Follows leaving.lua in every call.

-- Cheap, large and rarely wanted goes first; the floor rises with what went, so that what was wanted long ago ages.
local function priority(sha, at)
  local told = call('HMGET', K.loc .. sha, 'size', 'cost', 'freq')
  local floor = tonumber(call('HGET', K.bytes .. at, 'floor') or 0)
  return floor + told[3] * told[2] / math.max(told[1], 1)
end

-- The key lasts as long as its last pin, so that of dead holders nothing is left.
local function until_last(sha)
  local last = call('ZRANGE', K.pin .. sha, -1, -1, 'WITHSCORES')
  if last[2] then
    call('PEXPIREAT', K.pin .. sha, math.ceil(last[2] * 1000))
  end
end

local function pin(sha, holder, life_s)
  call('ZADD', K.pin .. sha, 'GT', exactly(now() + life_s), holder)
  until_last(sha)
end

local function unpin(sha, holder)
  call('ZREM', K.pin .. sha, holder)
  until_last(sha)
end

local function pinned(sha)
  return call('EXISTS', K.pin .. sha) == 1
end

-- The first in the queue that are not pinned, up to `most` of them, and whether they free `needed` bytes together.
local function victims(at, needed, newcomer, most)
  local found, start = {}, 0
  while needed > 0 and #found < most do
    local page = call('ZRANGE', K.queue .. at, start, start + 99, 'WITHSCORES')
    if #page == 0 then
      return found, false
    end
    for i = 1, #page, 2 do
      if needed > 0 and #found < most and page[i] ~= newcomer and not pinned(page[i]) then
        found[#found + 1] = {page[i], tonumber(page[i + 1])}
        needed = needed - call('HGET', K.loc .. page[i], 'size')
      end
    end
    start = start + 100
  end
  return found, needed <= 0
end

-- What evictions are counted by: entries that share their bytes are of one kind but for rare cases.
local function kind_of_bytes(sha)
  local name = call('SRANDMEMBER', K.of .. sha)
  return name and name:match('^[^:]+') or 'none'
end

local function bytes_of(at)
  return tonumber(call('HGET', K.bytes .. at, 'bytes') or 0)
end

local function evict(leaving, tier, node)
  local at = node .. ':' .. tier
  local floor = tonumber(call('HGET', K.bytes .. at, 'floor') or 0)
  for _, victim in ipairs(leaving) do
    count('evicted:' .. kind_of_bytes(victim[1]) .. ':' .. tier)
    -- Who was pinned while others went may stand below it.
    floor = math.max(floor, victim[2])
    call('HSET', K.bytes .. at, 'floor', exactly(floor))
    remove_replica(victim[1], tier, node)
    tidy(victim[1])
  end
end

-- Counts the bytes of a file that lies in the tier already, and evicts others down to `limit` bytes. False, and nobody is
-- evicted, when that is not enough: its file goes to the trash.
local function place(sha, tier, node, limit)
  local at = node .. ':' .. tier
  call('SREM', K.trash .. node, tier .. ' ' .. sha)
  if call('HSETNX', K.loc .. sha, replica(node, tier), '') == 0 then
    return true
  end
  call('HINCRBY', K.bytes .. at, 'bytes', call('HGET', K.loc .. sha, 'size'))
  call('ZADD', K.queue .. at, exactly(priority(sha, at)), sha)
  local leaving, enough = victims(at, bytes_of(at) - limit, sha, math.huge)
  if enough then
    evict(leaving, tier, node)
    return true
  end
  remove_replica(sha, tier, node)
  count('refused:' .. tier)
  return false
end

-- What the node should delete now.
local function trash_of(node, limit)
  return call('SPOP', K.trash .. node, limit)
end
