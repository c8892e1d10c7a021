-- {place counted from 0, seconds until its turn or false} of each job; false for jobs that do not wait. p: kind, ids
local found = turns(p.kind, p.ids)
local places = {}
for i, id in ipairs(p.ids) do
  places[i] = found[id] or false
end
return {places = places}
