-- p: id, fence, retention, outputs, shas, receipt, done (JSON of the event's data), hold?
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
for _, sha in ipairs(p.shas) do
  ref(sha, p.id)
  if p.hold then
    unhold(sha, p.hold, freed)
  end
end
local at = call('HMGET', K.job .. p.id, 'kind', 'started_at')
local ran = now() - tonumber(at[2])
local pace = call('GET', K.pace .. at[1])
call('SET', K.pace .. at[1], seconds(pace and 0.8 * pace + 0.2 * ran or ran))
set(p.id, 'outputs', p.outputs, 'output_shas', cjson.encode(p.shas), 'receipt', p.receipt, 'progress', 100,
  'stage', 'done')
end_job(p.id, 'completed', 'done', p.done, freed)
return {freed = freed}
