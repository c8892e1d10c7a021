-- Appends to the streams of many jobs at once what their engine has made in a step. Renews nothing.
-- p: call, told [{id, fence, events [{kind, data}]}]
local lost = {}
for _, job in ipairs(p.told) do
  if not held(job.id, job.fence) then
    lost[#lost + 1] = job.id
  elseif not repeated(job.id, p.call) then
    for _, event in ipairs(job.events) do
      emit(job.id, event.kind, event.data, job.fence)
    end
  end
end
return {lost = lost}
