-- A copy of known bytes lies in another tier now. p: sha, node, tier, limit
local placed = false
if call('EXISTS', K.loc .. p.sha) == 1 then
  placed = place(p.sha, p.tier, p.node, p.limit)
else
  call('SADD', K.trash .. p.node, p.tier .. ' ' .. p.sha)
end
return {placed = placed, trash = trash_of(p.node, 100)}
