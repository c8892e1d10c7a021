-- p: kind, prefix
local found = call('ZRANGE', K.prefix .. p.kind .. ':' .. p.prefix, 0, -1, 'WITHSCORES')
local positions = {}
for i = 2, #found, 2 do
  positions[#positions + 1] = tonumber(found[i])
end
return {positions = positions}
