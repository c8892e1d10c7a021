-- Back to the queue with its checkpoint; the attempt does not count. p: id, fence, retention
local freed = {}
local closing = p.fence .. ':release'
if get(p.id, 'closed') == closing then
  return {freed = freed}
end
if not held(p.id, p.fence) then
  return {error = 'fence'}
end
set(p.id, 'closed', closing)
if get(p.id, 'cancel') == '1' then
  cancel_job(p.id, freed)
else
  call('HINCRBY', K.job .. p.id, 'attempt', -1)
  requeue(p.id)
end
return {freed = freed}
