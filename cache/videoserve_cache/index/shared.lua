-- What the calls stand on. Prepended to each of them; K holds the key names of keys.py, p the parameters.

local call = redis.call

-- Redis' clock decides about ages and leases: those of the nodes may be wrong.
local function now()
  local t = call('TIME')
  return t[1] + t[2] / 1e6
end

-- Lua prints numbers with 14 digits.
local function exactly(number)
  return string.format('%.17g', number)
end

local function count(what, by)
  call('HINCRBY', K.counts, what, by or 1)
end

local function replica(node, tier)
  return '@' .. tier .. ' ' .. node
end

-- {tier, node} of each replica.
local function replicas(sha)
  local found = {}
  for _, field in ipairs(call('HKEYS', K.loc .. sha)) do
    local tier, node = field:match('^@(%S+) (.+)$')
    if tier then
      found[#found + 1] = {tier, node}
    end
  end
  return found
end

-- True when a node that beats has the bytes.
local function living(sha)
  for _, at in ipairs(replicas(sha)) do
    if call('EXISTS', K.node .. at[2]) == 1 then
      return true
    end
  end
  return false
end

local function kind_of(digest)
  for _, kind in ipairs(KINDS) do
    if call('EXISTS', K.entry .. kind .. ':' .. digest) == 1 then
      return kind
    end
  end
end
