-- p: id, fence, retention, max_attempts, code, message, retry
local freed = {}
local closing = p.fence .. ':fail'
if get(p.id, 'closed') == closing then
  return {freed = freed}
end
if not held(p.id, p.fence) then
  return {error = 'fence'}
end
set(p.id, 'closed', closing)
if p.retry then
  try_again(p.id, p.message, freed)
else
  note(p.id, p.message)
  if get(p.id, 'cancel') == '1' then
    cancel_job(p.id, freed)
  else
    fail_job(p.id, p.code, p.message, freed)
  end
end
return {freed = freed}
