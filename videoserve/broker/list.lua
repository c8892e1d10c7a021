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
local rows = {}
for i = 1, math.min(#ids, p.limit) do
  local place = call('ZRANK', K.queue .. get(ids[i], 'kind'), ids[i])
  rows[i] = {call('HMGET', K.job .. ids[i], unpack(p.fields)), place}
end
return {rows = rows, more = #ids > p.limit}
