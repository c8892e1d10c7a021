-- Files that are not there, or not what they should be. p: node, tier, shas, corrupt
for _, sha in ipairs(p.shas) do
  remove_replica(sha, p.tier, p.node)
  tidy(sha)
end
if p.corrupt then
  count('corrupt:' .. p.tier, #p.shas)
end
return {}
