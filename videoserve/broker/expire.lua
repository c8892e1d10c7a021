-- Records whose time is over, and files without a job. p: limit, max_attempts, retention, kinds
for _, kind in ipairs(p.kinds) do
  -- Also those of workers that live: a claim whose answer was lost is renewed by nobody.
  reap(kind)
end
local removed = {}
for _, id in ipairs(call('ZRANGEBYSCORE', K.expiry, '-inf', now(), 'LIMIT', 0, p.limit)) do
  removed[#removed + 1] = {id, remove_record(id)}
end
for _, held in ipairs(call('ZRANGEBYSCORE', K.holds, '-inf', now(), 'LIMIT', 0, p.limit)) do
  local sha, hold = held:match('^(%S+) (.+)$')
  local freed = {}
  unhold(sha, hold, freed)
  orphan(freed, hold)
end
local orphans = call('HGETALL', K.orphans)
for i = 1, #orphans, 2 do
  if call('EXISTS', K.ref .. orphans[i]) == 0 then
    removed[#removed + 1] = {orphans[i + 1], {orphans[i]}}
  end
end
call('DEL', K.orphans)
return {removed = removed}
