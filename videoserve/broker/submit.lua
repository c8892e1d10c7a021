-- Writes jobs and queues them, all or none. One with a `result` is completed with it, as complete_job says; those with
-- the same `twin` ask for the same video.
-- p: jobs [{id, job, tenant, kind, rank, shape, limit, hook, inputs, adapters, asker?, deadline?, work?, twin?, result?}],
--    queue_limit, key_queue_limit, retention, idem?, body?, hold?
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

local ids, waits = {}, {}
for i, job in ipairs(p.jobs) do
  ids[i] = job.id
  if not job.result then
    waits[#waits + 1] = job
  end
end
-- The caller chose the ids: finding one means this very submission has been here before.
if call('EXISTS', K.job .. first.id) == 1 then
  return {ids = ids}
end

local waiting = call('ZCARD', K.queue .. first.kind)
if #waits > 0 and waiting + #waits > p.queue_limit then
  return {error = 'full', waiting = waiting, pace = call('GET', K.pace .. first.kind) or '0'}
end
local active = call('SCARD', K.active .. first.tenant)
if #waits > 0 and active + #waits > p.key_queue_limit then
  return {error = 'key_full', waiting = active, pace = call('GET', K.pace .. first.kind) or '0'}
end
local late, wait = too_late(waits)
if late then
  return {error = 'late', id = waits[late].id, wait = wait}
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
    set(job.id, 'work', job.work)
  end
  if job.asker then
    set(job.id, 'asker', job.asker)
  end
  for _, sha in ipairs(job.inputs) do
    ref(sha, job.id)
  end
  keep_adapters(job.id, job.adapters)
  -- Nobody asks for a list of chats.
  if job.kind == 'video' then
    call('ZADD', K.listed .. job.tenant, order, job.id)
    call('ZADD', K.status .. 'queued:' .. job.tenant, order, job.id)
  end
  call('SADD', K.active .. job.tenant, job.id)
  if job.result then
    complete_job(job.id, job.result, {})
  elseif not job.twin or join_twins(job.id, job.twin, job.rank) then
    if job.work then
      call('HSET', K.work .. job.kind, job.id, job.work)
    end
    enqueue(job.id)
  end
end
if p.hold then
  for _, job in ipairs(p.jobs) do
    for _, files in ipairs({job.inputs, job.adapters, job.result and job.result.shas or {}}) do
      for _, sha in ipairs(files) do
        -- Frees nothing: the jobs need the file.
        unhold(sha, p.hold, {})
      end
    end
  end
end
if p.idem then
  call('SET', K.idem .. p.idem, cjson.encode({body = p.body, ids = ids}), 'EX', math.ceil(p.retention))
end
return {ids = ids}
