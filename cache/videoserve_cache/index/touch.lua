-- What a process has used since it last told. p: uses {sha = times}, pins [sha], holder, pin_s, counts {name = number}
for sha, times in pairs(p.uses) do
  if call('EXISTS', K.loc .. sha) == 1 then
    call('HINCRBY', K.loc .. sha, 'freq', times)
    for _, at in ipairs(replicas(sha)) do
      local where = at[2] .. ':' .. at[1]
      call('ZADD', K.queue .. where, 'XX', exactly(priority(sha, where)), sha)
    end
  end
end
for _, sha in ipairs(p.pins) do
  pin(sha, p.holder, p.pin_s)
end
for name, number in pairs(p.counts) do
  call('HINCRBYFLOAT', K.counts, name, exactly(number))
end
return {}
