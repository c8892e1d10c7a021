-- Appends events and the state they bring; a sign of life, so it renews the lease too.
-- p: id, fence, lease, call, events [{kind, data}], set {field = value}, sentences [], checkpoint?, checkpoint_sha?
if not held(p.id, p.fence) then
  return {error = 'fence'}
end
if repeated(p.id, p.call) then
  return {freed = {}}
end
local freed = {}
-- An attempt that goes on from a checkpoint, or starts over, is behind what the client was told before.
local told = tonumber(get(p.id, 'progress'))
for _, event in ipairs(p.events) do
  if event.kind == 'progress' then
    local data = cjson.decode(event.data)
    if data.progress < told then
      data.progress = told
      event.data = cjson.encode(data)
    end
    told = data.progress
  end
  if event.kind == 'preview' then
    drop_preview(p.id)
    set(p.id, 'preview', emit(p.id, event.kind, event.data))
  else
    emit(p.id, event.kind, event.data)
  end
end
for field, value in pairs(p.set) do
  set(p.id, field, field == 'progress' and math.max(told, tonumber(value)) or value)
end
if #p.sentences > 0 then
  local known = get(p.id, 'adjustments')
  local sentences = known and cjson.decode(known) or {}
  for _, sentence in ipairs(p.sentences) do
    sentences[#sentences + 1] = sentence
  end
  set(p.id, 'adjustments', cjson.encode(sentences))
end
if p.checkpoint_sha then
  -- The new one first: a checkpoint with the same bytes as the last must not be freed.
  ref(p.checkpoint_sha, p.id)
  if get(p.id, 'checkpoint_sha') ~= p.checkpoint_sha then
    drop_checkpoint(p.id, freed)
  end
  set(p.id, 'checkpoint', p.checkpoint, 'checkpoint_sha', p.checkpoint_sha)
end
call('ZADD', K.leases .. get(p.id, 'kind'), now() + p.lease, p.id)
changed(p.id)
return {freed = freed}
