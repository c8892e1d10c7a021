-- Places in a queue, counted from 0; false for jobs that are not in it. p: kind, ids
local places = {}
for i, id in ipairs(p.ids) do
  places[i] = call('ZRANK', K.queue .. p.kind, id)
end
return {places = places}
