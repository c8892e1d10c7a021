-- One page of a client's jobs. p: tenant, limit, descending, fields, after?, status?
local key = p.status and K.status .. p.status .. ':' .. p.tenant or K.listed .. p.tenant
local edge = p.descending and '+inf' or '-inf'
if p.after then
  local at = call('HMGET', K.job .. p.after, 'tenant', 'order')
  if at[1] ~= p.tenant then
    return {error = 'missing'}
  end
  edge = '(' .. at[2]
end
local ids
if p.descending then
  ids = call('ZREVRANGEBYSCORE', key, edge, '-inf', 'LIMIT', 0, p.limit + 1)
else
  ids = call('ZRANGEBYSCORE', key, edge, '+inf', 'LIMIT', 0, p.limit + 1)
end
local rows, kinds = {}, {}
for i = 1, math.min(#ids, p.limit) do
  local kind = get(ids[i], 'kind')
  kinds[kind] = kinds[kind] or {}
  table.insert(kinds[kind], ids[i])
  rows[i] = {call('HMGET', K.job .. ids[i], unpack(p.fields)), false}
end
for kind, of_kind in pairs(kinds) do
  local found = turns(kind, of_kind)
  for i, row in ipairs(rows) do
    row[2] = found[ids[i]] or row[2]
  end
end
return {rows = rows, more = #ids > p.limit}
