-- Back to the queue with its checkpoint; the attempt does not count. p: id, fence, retention
local answer = close('release')
if answer then
  return answer
end
local freed = {}
if get(p.id, 'cancel') == '1' then
  cancel_job(p.id, freed)
else
  call('HINCRBY', K.job .. p.id, 'attempt', -1)
  requeue(p.id)
end
return {freed = freed}
