-- A page of entries by kind and digest. p: kinds, limit, after? (a name), tenant?, model?
local fields = {'sha', 'size', 'about', 'cost', 'class', 'at', 'model', 'loras', 'tenant', 'shared'}
local from_kind, from_digest
if p.after then
  from_kind, from_digest = p.after:match('^([^:]+):(.+)$')
end
local rows, t, seen, last = {}, now(), 0, nil
local started = not from_kind
for _, kind in ipairs(p.kinds) do
  local edge = '-'
  if kind == from_kind then
    started, edge = true, '(' .. from_digest
  end
  if started and seen < p.limit then
    for _, digest in ipairs(call('ZRANGEBYLEX', K.kind .. kind, edge, '+', 'LIMIT', 0, p.limit - seen)) do
      local row = call('HMGET', K.entry .. kind .. ':' .. digest, unpack(fields))
      seen, last = seen + 1, kind .. ':' .. digest
      if (not p.tenant or row[9] == p.tenant) and (not p.model or row[7] == p.model) then
        row[6] = exactly(t - row[6])
        row[11], row[12] = kind, digest
        row[13] = tonumber(call('HGET', K.loc .. row[1], 'freq'))
        row[14], row[15] = replicas(row[1]), pinned(row[1])
        rows[#rows + 1] = row
      end
    end
  end
end
return {rows = rows, after = seen == p.limit and last or false}
