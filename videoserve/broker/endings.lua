-- How jobs end, well or badly, or try again. Follows twins.lua in every transition.

-- Whoever asked for a chat has had the answer, or has left: nobody comes back for it.
local CHAT_RETENTION = 600

local function end_job(id, status, kind, data, freed)
  local t = now()
  local at = call('HMGET', K.job .. id, 'kind', 'tenant', 'hook')
  pass_on(id)
  dequeue(id)
  unlease(id)
  move(id, status)
  call('SREM', K.active .. at[2], id)
  call('HDEL', K.work .. at[1], id)
  local kept = at[1] == 'chat' and math.min(p.retention, CHAT_RETENTION) or p.retention
  local expires = t + kept
  set(id, 'completed_at', seconds(t), 'expires_at', seconds(expires))
  call('HDEL', K.job .. id, 'cancel', 'eta_s')
  call('ZADD', K.expiry, expires, id)
  drop_checkpoint(id, freed)
  drop_adapters(id)
  drop_preview(id)
  emit(id, kind, data)
  if at[3] == '1' then
    call('XADD', K.webhooks, '*', 'job', id, 'event', 'video.' .. status, 'attempt', 0)
  end
  -- A finished job may have been what kept its client at the concurrency limit.
  wake(at[1])
end

-- result: outputs, receipt, adjustments? and done, the data of the event, as JSON; shas, the files of the outputs.
local function complete_job(id, result, freed)
  for _, sha in ipairs(result.shas) do
    ref(sha, id)
  end
  set(id, 'outputs', result.outputs, 'output_shas', cjson.encode(result.shas), 'receipt', result.receipt,
    'progress', 100, 'stage', 'done')
  if result.adjustments then
    set(id, 'adjustments', result.adjustments)
  end
  end_job(id, 'completed', 'done', result.done, freed)
end

local function fail_job(id, code, message, freed)
  -- What is wrong with a video is wrong with it for all who ask for it; what is wrong with a job is not.
  local own = code == 'cancelled' or code == 'deadline_exceeded'
  local followers = own and {} or take_followers(id)
  set(id, 'error', cjson.encode({code = code, message = message}))
  end_job(id, 'failed', 'failed', cjson.encode({code = code, message = message, retry = false}), freed)
  for _, follower in ipairs(followers) do
    fail_job(follower, code, message, freed)
  end
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

-- The last call about a lease. What it is answered when there is nothing to do: it came before, or the lease passed on.
local function close(call_name)
  local closing = p.fence .. ':' .. call_name
  if get(p.id, 'closed') == closing then
    return {freed = {}}
  end
  if not held(p.id, p.fence) then
    return {error = 'fence'}
  end
  set(p.id, 'closed', closing)
end

-- Leases that ran out; with `spare`, only of workers without a heartbeat: one that is merely slow may still renew.
-- Returns the ids that are queued again; files nobody needs wait among the orphans.
local function reap(kind, spare)
  local again = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', K.leases .. kind, '-inf', now(), 'LIMIT', 0, 100)) do
    local freed = {}
    local worker = get(id, 'worker') or ''
    local spared = spare and call('EXISTS', K.worker .. worker) == 1
    if not spared and try_again(id, 'Worker ' .. worker .. ' stopped renewing its lease.', freed) then
      again[#again + 1] = id
    end
    orphan(freed, id)
  end
  return again
end

local function remove_record(id)
  local freed = {}
  local at = call('HMGET', K.job .. id, 'kind', 'tenant', 'status', 'inputs', 'output_shas')
  pass_on(id)
  dequeue(id)
  unlease(id)
  drop_checkpoint(id, freed)
  drop_adapters(id)
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
  call('HDEL', K.work .. at[1], id)
  call('ZREM', K.listed .. at[2], id)
  call('ZREM', K.status .. at[3] .. ':' .. at[2], id)
  call('ZREM', K.expiry, id)
  call('DEL', K.job .. id)
  changed(id)
  return freed
end
