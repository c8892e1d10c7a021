-- p: id, fence, retention, outputs, shas, receipt, done (JSON of the event's data), hold?,
--    twin {receipt, done}? for jobs that waited for this one, with <job> where their id comes
local answer = close('finish')
if answer then
  return answer
end
local freed = {}
if get(p.id, 'cancel') == '1' then
  -- The client has been told that the job stops: its result must not appear after that.
  cancel_job(p.id, freed)
  for _, sha in ipairs(p.shas) do
    unhold(sha, p.hold or p.id, freed)
  end
  return {freed = freed}
end
local followers = p.twin and take_followers(p.id) or {}
local at = call('HMGET', K.job .. p.id, 'kind', 'started_at')
local ran = now() - tonumber(at[2])
local pace = call('GET', K.pace .. at[1])
call('SET', K.pace .. at[1], seconds(pace and 0.8 * pace + 0.2 * ran or ran))
complete_job(p.id, p, freed)
for _, id in ipairs(followers) do
  local deadline = get(id, 'deadline')
  if deadline and tonumber(deadline) < now() then
    fail_job(id, 'deadline_exceeded', 'The deadline passed before the job that computes the same video was done.', freed)
  else
    complete_job(id, {outputs = p.outputs, shas = p.shas, receipt = p.twin.receipt:gsub('<job>', id),
      done = p.twin.done:gsub('<job>', id), adjustments = get(p.id, 'adjustments')}, freed)
    call('INCR', K.answered .. at[1])
  end
end
if p.hold then
  for _, sha in ipairs(p.shas) do
    unhold(sha, p.hold, freed)
  end
end
return {freed = freed}
