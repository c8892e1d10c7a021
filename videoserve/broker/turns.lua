-- When the turn of a waiting job comes. Follows endings.lua in every transition.

-- Seconds of work of each job, as estimated when it came, else as jobs take here on average; infinite before anything
-- was measured.
local function works_of(kind, ids)
  local average = tonumber(call('GET', K.pace .. kind) or math.huge)
  local works = {}
  -- Lua's stack holds a few thousand arguments.
  for start = 1, #ids, 1000 do
    local told = call('HMGET', K.work .. kind, unpack(ids, start, math.min(start + 999, #ids)))
    for i = 1, #told do
      works[start + i - 1] = tonumber(told[i] or average)
    end
  end
  return works
end

-- Gives a job to the worker that is free first; returns when that one begins with it.
local function give(free, work)
  local first = 1
  for i = 2, #free do
    if free[i] < free[first] then
      first = i
    end
  end
  local turn = free[first]
  free[first] = turn + work
  return turn
end

-- Seconds until each living worker is through with what it runs; with none alive as if there were one.
local function workers_free(kind)
  local free, number = {}, {}
  for _, worker in ipairs(call('SMEMBERS', K.able .. kind)) do
    if call('EXISTS', K.worker .. worker) == 1 then
      free[#free + 1] = 0
      number[worker] = #free
    else
      call('SREM', K.able .. kind, worker)
    end
  end
  free[1] = free[1] or 0
  local running = call('ZRANGE', K.leases .. kind, 0, -1)
  local works = works_of(kind, running)
  for i, id in ipairs(running) do
    local at = call('HMGET', K.job .. id, 'worker', 'eta_s')
    local left, mine = tonumber(at[2] or works[i]), number[at[1]]
    if mine then
      free[mine] = free[mine] + left
    else
      -- Its worker leaves or died: the job will be another one's.
      give(free, left)
    end
  end
  return free
end

-- {place from 0, seconds until its turn or false} by id, for those of `ids` that wait. One that waits for another job's
-- video has the turn of that one, which is now when that one runs.
local function turns(kind, ids)
  local found, last, alike = {}, -1, {}
  for _, id in ipairs(ids) do
    local first = get(id, 'follows') or id
    local place = call('ZRANK', K.queue .. kind, first)
    if place then
      found[id] = {place, false}
      last = math.max(last, place)
      alike[first] = alike[first] or {}
      table.insert(alike[first], id)
    elseif first ~= id then
      found[id] = {0, 0}
    end
  end
  if last < 0 then
    return found
  end
  local free = workers_free(kind)
  local ahead = call('ZRANGE', K.queue .. kind, 0, last)
  for i, work in ipairs(works_of(kind, ahead)) do
    local turn = give(free, work)
    for _, id in ipairs(turn < math.huge and alike[ahead[i]] or {}) do
      found[id][2] = turn
    end
  end
  return found
end

-- Number of the first new job, they come in order of rank, that cannot be done by its deadline; seconds until its turn.
local function too_late(jobs)
  local first = jobs[1]
  if not (first and first.deadline and first.work) then
    return nil
  end
  local free = workers_free(first.kind)
  local below = string.format('(%.17g', first.rank)
  for _, work in ipairs(works_of(first.kind, call('ZRANGEBYSCORE', K.queue .. first.kind, '-inf', below))) do
    give(free, work)
  end
  for number, job in ipairs(jobs) do
    local turn = give(free, job.work)
    if turn < math.huge and now() + turn + job.work > job.deadline then
      return number, turn
    end
  end
end
