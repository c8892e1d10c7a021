-- Leases the first job the engine has an appetite for; those whose lease ran out come before the queue.
-- p: kind, worker, lease, max_attempts, retention, idle, shape?, before?
local full = {}
local function at_limit(tenant, limit)
  if limit == 0 then
    return false
  end
  full[tenant] = full[tenant] or call('SCARD', K.running .. tenant)
  return full[tenant] >= limit
end

local t = now()
-- 'take', 'skip', or 'gone' for a job that nobody waits for any more.
local function judge(id)
  local at = call('HMGET', K.job .. id, 'tenant', 'limit', 'deadline')
  if at[3] and tonumber(at[3]) < t then
    local freed = {}
    fail_job(id, 'deadline_exceeded', 'The deadline passed before the job could run.', freed)
    orphan(freed, id)
    return 'gone'
  end
  return at_limit(at[1], tonumber(at[2])) and 'skip' or 'take'
end

local function first_of(key, below)
  local offset = 0
  while true do
    local page = call('ZRANGEBYSCORE', key, '-inf', below, 'LIMIT', offset, 100)
    for _, id in ipairs(page) do
      local verdict = judge(id)
      if verdict == 'take' then
        return id
      end
      -- A job that is gone left the set, and those behind it moved up.
      offset = offset + (verdict == 'skip' and 1 or 0)
    end
    if #page < 100 then
      return nil
    end
  end
end

local function wanted(id)
  local at = call('HMGET', K.job .. id, 'shape', 'rank')
  return p.idle or (p.before and tonumber(at[2]) < p.before) or (p.shape and at[1] == p.shape)
end

local function choose()
  for _, id in ipairs(reap(p.kind)) do
    if wanted(id) and judge(id) == 'take' then
      return id
    end
  end
  if p.idle then
    return first_of(K.queue .. p.kind, '+inf')
  end
  local urgent = p.before and first_of(K.queue .. p.kind, '(' .. string.format('%.17g', p.before))
  return urgent or (p.shape and first_of(K.shape .. p.kind .. ':' .. p.shape, '+inf'))
end

local id = choose()
if not id then
  return {}
end
local fence = call('INCR', K.fence)
local attempt = call('HINCRBY', K.job .. id, 'attempt', 1)
dequeue(id)
move(id, 'in_progress')
local checkpoint = get(id, 'checkpoint')
-- Until the worker tells its stage: the one it goes on in, the first one otherwise.
set(id, 'fence', fence, 'worker', p.worker, 'started_at', seconds(t),
  'stage', checkpoint and cjson.decode(checkpoint).stage or 'encode')
call('ZADD', K.leases .. p.kind, t + p.lease, id)
call('SADD', K.running .. get(id, 'tenant'), id)
return {fence = fence, attempt = attempt, job = get(id, 'job'), checkpoint = checkpoint}
