-- What the transitions stand on. Prepended to each of them; K holds the key names of keys.py, p the parameters.

local call = redis.call

-- The server's clock decides about leases: clients may be stopped or wrong.
local function now()
  local t = call('TIME')
  return t[1] + t[2] / 1e6
end

-- Lua prints numbers with 14 digits, which cuts unix seconds to hundredths.
local function seconds(t)
  return string.format('%.6f', t)
end

local function get(id, field)
  return call('HGET', K.job .. id, field)
end

local function set(id, ...)
  call('HSET', K.job .. id, ...)
end

-- Tells those who remember a reading of the job that it is out of date.
local function changed(id)
  call('PUBLISH', K.changed, id)
end

-- `fence` is 0 where it does not matter which attempt said it.
local function emit(id, kind, data, fence)
  local seq = call('HINCRBY', K.job .. id, 'seq', 1)
  call('XADD', K.events .. id, 'MAXLEN', '~', 20000, seq .. '-0', 'kind', kind, 'data', data, 'fence', fence or 0)
  return seq
end

-- Only the latest preview is worth its bytes.
local function drop_preview(id)
  local seq = get(id, 'preview')
  if seq then
    call('XDEL', K.events .. id, seq .. '-0')
    call('HDEL', K.job .. id, 'preview')
  end
end

-- Whether the last call about a job was this very one: its answer was lost, and the store may have been away since.
local function repeated(id, nonce)
  if get(id, 'call') == nonce then
    return true
  end
  set(id, 'call', nonce)
  return false
end

local function ref(sha, id)
  call('SADD', K.ref .. sha, id)
end

-- Appends to `freed` when no job needs the file any more.
local function unref(sha, id, freed)
  call('SREM', K.ref .. sha, id)
  if call('EXISTS', K.ref .. sha) == 0 then
    freed[#freed + 1] = sha
  end
end

-- Ends the hold of a request on a file that now has a job, or that never got one.
local function unhold(sha, hold, freed)
  call('ZREM', K.holds, sha .. ' ' .. hold)
  unref(sha, hold, freed)
end

-- For whoever collects later: nobody here can delete files.
local function orphan(freed, id)
  for _, sha in ipairs(freed) do
    call('HSET', K.orphans, sha, id)
  end
end

local function drop_checkpoint(id, freed)
  local sha = get(id, 'checkpoint_sha')
  if sha then
    unref(sha, id, freed)
    call('HDEL', K.job .. id, 'checkpoint', 'checkpoint_sha')
  end
end

-- A job needs its adapters until it ends, not for as long as its record is kept. Nobody has to be told of those that
-- are free then: a sweep looks for itself.
local function keep_adapters(id, shas)
  for _, sha in ipairs(shas) do
    ref(sha, id)
  end
  if #shas > 0 then
    set(id, 'adapters', cjson.encode(shas))
  end
end

local function drop_adapters(id)
  for _, sha in ipairs(cjson.decode(get(id, 'adapters') or '[]')) do
    unref(sha, id, {})
  end
  call('HDEL', K.job .. id, 'adapters')
end

local function wake(kind)
  call('XADD', K.wake .. kind, 'MAXLEN', 1, '*', 'at', '')
end

local function move(id, to)
  local at = call('HMGET', K.job .. id, 'tenant', 'status', 'order', 'kind')
  if at[4] == 'video' then
    call('ZREM', K.status .. at[2] .. ':' .. at[1], id)
    call('ZADD', K.status .. to .. ':' .. at[1], at[3], id)
  end
  set(id, 'status', to)
  changed(id)
end

local function enqueue(id)
  local at = call('HMGET', K.job .. id, 'kind', 'shape', 'rank')
  call('ZADD', K.queue .. at[1], at[3], id)
  call('ZADD', K.shape .. at[1] .. ':' .. at[2], at[3], id)
  wake(at[1])
end

local function dequeue(id)
  local at = call('HMGET', K.job .. id, 'kind', 'shape')
  call('ZREM', K.queue .. at[1], id)
  call('ZREM', K.shape .. at[1] .. ':' .. at[2], id)
end

local function held(id, fence)
  return fence > 0 and tonumber(get(id, 'fence') or 0) == fence
end

-- Ends the lease; whoever still works on it holds a dead token from here on.
local function unlease(id)
  local at = call('HMGET', K.job .. id, 'kind', 'tenant')
  call('ZREM', K.leases .. at[1], id)
  call('SREM', K.running .. at[2], id)
  set(id, 'fence', 0)
end

local function requeue(id)
  unlease(id)
  move(id, 'queued')
  set(id, 'stage', 'queued')
  call('HDEL', K.job .. id, 'eta_s')
  enqueue(id)
end
