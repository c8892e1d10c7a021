-- p: id, retention, tenant?
local at = call('HMGET', K.job .. p.id, 'tenant', 'status', 'error')
if not at[1] or (p.tenant and at[1] ~= p.tenant) then
  return {error = 'missing'}
end
if at[2] == 'queued' then
  -- A job that ran before may leave a checkpoint behind.
  local freed = {}
  cancel_job(p.id, freed)
  orphan(freed, p.id)
elseif at[2] == 'in_progress' then
  set(p.id, 'cancel', '1')
  changed(p.id)
elseif not (at[3] and cjson.decode(at[3]).code == 'cancelled') then
  return {error = 'over', status = at[2]}
end
return {}
