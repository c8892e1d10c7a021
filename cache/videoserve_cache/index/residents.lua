-- A part of what a tier of a node should have. p: node, tier, cursor
local page = call('ZSCAN', K.queue .. p.node .. ':' .. p.tier, p.cursor, 'COUNT', 1000)
local shas = {}
for i = 1, #page[2], 2 do
  shas[#shas + 1] = page[2][i]
end
return {cursor = page[1], shas = shas}
