-- Which of these files nobody refers to. p: node, tier, shas
local strangers = {}
for _, sha in ipairs(p.shas) do
  if call('HEXISTS', K.loc .. sha, replica(p.node, p.tier)) == 0 then
    strangers[#strangers + 1] = sha
  end
end
return {strangers = strangers}
