-- Jobs that wait or run for an API process which shows no sign of life. p: kind
local strays = {}
for _, key in ipairs({K.queue .. p.kind, K.leases .. p.kind}) do
  for _, id in ipairs(call('ZRANGE', key, 0, -1)) do
    local asker = get(id, 'asker')
    if asker and call('EXISTS', K.worker .. asker) == 0 then
      strays[#strays + 1] = id
    end
  end
end
return {strays = strays}
