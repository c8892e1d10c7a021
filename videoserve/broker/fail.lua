-- p: id, fence, retention, max_attempts, code, message, retry
local answer = close('fail')
if answer then
  return answer
end
local freed = {}
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
