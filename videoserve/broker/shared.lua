-- What the transitions share. Prepended to each of them; K holds the key names of keys.py, p the parameters.

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

local function emit(id, kind, data)
  local seq = call('HINCRBY', K.job .. id, 'seq', 1)
  call('XADD', K.events .. id, 'MAXLEN', '~', 20000, seq .. '-0', 'kind', kind, 'data', data)
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

local function wake(kind)
  call('XADD', K.wake .. kind, 'MAXLEN', 1, '*', 'at', '')
end

local function move(id, to)
  local at = call('HMGET', K.job .. id, 'tenant', 'status', 'order')
  call('ZREM', K.status .. at[2] .. ':' .. at[1], id)
  call('ZADD', K.status .. to .. ':' .. at[1], at[3], id)
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

local function end_job(id, status, kind, data, freed)
  local t = now()
  local at = call('HMGET', K.job .. id, 'kind', 'tenant', 'hook')
  dequeue(id)
  unlease(id)
  move(id, status)
  call('SREM', K.active .. at[2], id)
  local expires = t + p.retention
  set(id, 'completed_at', seconds(t), 'expires_at', seconds(expires))
  call('HDEL', K.job .. id, 'cancel', 'eta_s')
  call('ZADD', K.expiry, expires, id)
  drop_checkpoint(id, freed)
  drop_preview(id)
  emit(id, kind, data)
  if at[3] == '1' then
    call('XADD', K.webhooks, '*', 'job', id, 'event', 'video.' .. status, 'attempt', 0)
  end
  -- A finished job may have been what kept its client at the concurrency limit.
  wake(at[1])
end

local function fail_job(id, code, message, freed)
  set(id, 'error', cjson.encode({code = code, message = message}))
  end_job(id, 'failed', 'failed', cjson.encode({code = code, message = message, retry = false}), freed)
end

local function cancel_job(id, freed)
  fail_job(id, 'cancelled', 'The job was cancelled.', freed)
end

local function note(id, sentence)
  local at = call('HMGET', K.job .. id, 'reasons', 'attempt', 'worker')
  local reasons = at[1] and cjson.decode(at[1]) or {}
  reasons[#reasons + 1] = {attempt = tonumber(at[2]), worker = at[3] or '', sentence = sentence, at = now()}
  set(id, 'reasons', cjson.encode(reasons))
end

-- The end of an attempt that another one may follow. True when the job is queued again.
local function try_again(id, sentence, freed)
  note(id, sentence)
  if get(id, 'cancel') == '1' then
    cancel_job(id, freed)
    return false
  end
  local attempt = tonumber(get(id, 'attempt'))
  if attempt >= p.max_attempts then
    fail_job(id, 'attempts_exhausted',
      'Attempt ' .. attempt .. ' of ' .. p.max_attempts .. ' ended like those before it: ' .. sentence, freed)
    return false
  end
  requeue(id)
  return true
end

-- Leases that ran out. Returns the ids that are queued again; files nobody needs wait among the orphans.
local function reap(kind)
  local again = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', K.leases .. kind, '-inf', now(), 'LIMIT', 0, 100)) do
    local freed = {}
    local worker = get(id, 'worker') or ''
    if try_again(id, 'Worker ' .. worker .. ' stopped renewing its lease.', freed) then
      again[#again + 1] = id
    end
    orphan(freed, id)
  end
  return again
end

local function remove_record(id)
  local freed = {}
  local at = call('HMGET', K.job .. id, 'kind', 'tenant', 'status', 'inputs', 'output_shas')
  dequeue(id)
  unlease(id)
  drop_checkpoint(id, freed)
  for _, list in ipairs({at[4] or '[]', at[5] or '[]'}) do
    for _, sha in ipairs(cjson.decode(list)) do
      unref(sha, id, freed)
    end
  end
  if at[3] == 'queued' or at[3] == 'in_progress' then
    -- Readers that follow the job now still get its end.
    drop_preview(id)
    emit(id, 'failed', cjson.encode({code = 'cancelled', message = 'The job was deleted.', retry = false}))
    call('EXPIRE', K.events .. id, 60)
    wake(at[1])
  else
    call('DEL', K.events .. id)
  end
  call('SREM', K.active .. at[2], id)
  call('ZREM', K.listed .. at[2], id)
  call('ZREM', K.status .. at[3] .. ':' .. at[2], id)
  call('ZREM', K.expiry, id)
  call('DEL', K.job .. id)
  changed(id)
  return freed
end
