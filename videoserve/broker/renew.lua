-- p: id, fence, lease. Answers whether the job was asked to stop.
if not held(p.id, p.fence) then
  return {error = 'fence'}
end
call('ZADD', K.leases .. get(p.id, 'kind'), now() + p.lease, p.id)
return {cancel = get(p.id, 'cancel') == '1'}
