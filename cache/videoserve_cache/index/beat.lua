-- A node lives. Answers what it should delete. p: node, life_s, forget_s, limit, address?
call('HSET', K.node .. p.node, 'beat', exactly(now()))
if p.address then
  call('HSET', K.node .. p.node, 'address', p.address)
end
call('PEXPIRE', K.node .. p.node, math.ceil(p.life_s * 1000))
local new = call('ZADD', K.nodes, exactly(now()), p.node) == 1
-- A node that has not been seen for long may be gone for good: piece by piece its replicas are forgotten.
for _, node in ipairs(call('ZRANGEBYSCORE', K.nodes, '-inf', exactly(now() - p.forget_s))) do
  local left = 0
  for _, tier in ipairs({'memory', 'disk'}) do
    for _, sha in ipairs(call('ZRANGE', K.queue .. node .. ':' .. tier, 0, p.limit - 1)) do
      remove_replica(sha, tier, node)
      tidy(sha)
      left = left + 1
    end
  end
  if left == 0 then
    call('ZREM', K.nodes, node)
    call('DEL', K.trash .. node, K.bytes .. node .. ':memory', K.bytes .. node .. ':disk')
  end
end
return {trash = trash_of(p.node, p.limit), drops = tonumber(call('GET', K.drops) or 0), new = new}
