-- Writes jobs and queues them, all or none.
-- p: jobs [{id, job, tenant, kind, rank, shape, limit, hook, inputs, deadline?, work?}], queue_limit, key_queue_limit,
--    retention, idem?, body?, hold?
local first = p.jobs[1]
if p.idem then
  local earlier = call('GET', K.idem .. p.idem)
  if earlier then
    earlier = cjson.decode(earlier)
    if earlier.body ~= p.body then
      return {error = 'other_body'}
    end
    return {ids = earlier.ids}
  end
end

local ids = {}
for i, job in ipairs(p.jobs) do
  ids[i] = job.id
end
-- The caller chose the ids: finding one means this very submission has been here before.
if call('EXISTS', K.job .. first.id) == 1 then
  return {ids = ids}
end

local waiting = call('ZCARD', K.queue .. first.kind)
if waiting + #ids > p.queue_limit then
  return {error = 'full', waiting = waiting, pace = call('GET', K.pace .. first.kind) or '0'}
end
local active = call('SCARD', K.active .. first.tenant)
if active + #ids > p.key_queue_limit then
  return {error = 'key_full', waiting = active, pace = call('GET', K.pace .. first.kind) or '0'}
end
local late, wait = too_late(p.jobs)
if late then
  return {error = 'late', number = late, wait = wait}
end

for _, job in ipairs(p.jobs) do
  local order = call('INCR', K.order)
  set(job.id, 'job', job.job, 'tenant', job.tenant, 'kind', job.kind, 'rank', job.rank, 'shape', job.shape,
    'limit', job.limit, 'hook', job.hook, 'inputs', cjson.encode(job.inputs), 'order', order,
    'status', 'queued', 'stage', 'queued', 'progress', 0, 'attempt', 0, 'fence', 0, 'seq', 0)
  if job.deadline then
    set(job.id, 'deadline', job.deadline)
  end
  if job.work then
    call('HSET', K.work .. job.kind, job.id, job.work)
  end
  for _, sha in ipairs(job.inputs) do
    ref(sha, job.id)
  end
  call('ZADD', K.listed .. job.tenant, order, job.id)
  call('ZADD', K.status .. 'queued:' .. job.tenant, order, job.id)
  call('SADD', K.active .. job.tenant, job.id)
  enqueue(job.id)
end
if p.hold then
  for _, sha in ipairs(first.inputs) do
    -- Frees nothing: the jobs need the file.
    unhold(sha, p.hold, {})
  end
end
if p.idem then
  call('SET', K.idem .. p.idem, cjson.encode({body = p.body, ids = ids}), 'EX', math.ceil(p.retention))
end
return {ids = ids}
