-- Jobs whose lease has run out and whose worker is gone try again, or end. p: kinds, max_attempts, retention
local again = {}
for _, kind in ipairs(p.kinds) do
  for _, id in ipairs(reap(kind, true)) do
    again[#again + 1] = id
  end
end
return {again = again}
