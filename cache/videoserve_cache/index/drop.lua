-- Forgets up to `limit` entries. p: by (model, lora, tenant, kind or digest), value, limit,
--    quiet? when what processes remember of them is of no use but right
local names = {}
if p.by == 'digest' then
  local kind = kind_of(p.value)
  names[1] = kind and kind .. ':' .. p.value
elseif p.by == 'kind' then
  for i, digest in ipairs(call('ZRANGE', K.kind .. p.value, 0, p.limit - 1)) do
    names[i] = p.value .. ':' .. digest
  end
else
  names = call('SRANDMEMBER', K[p.by] .. p.value, p.limit)
end
for _, name in ipairs(names) do
  tidy(remove_entry(name))
end
if #names > 0 and not p.quiet then
  call('INCR', K.drops)
  count('dropped', #names)
end
return {dropped = #names}
