-- p: digest, holder, pin_s (0 ends the pin)
local kind = kind_of(p.digest)
if not kind then
  return {pinned = false}
end
local sha = call('HGET', K.entry .. kind .. ':' .. p.digest, 'sha')
if p.pin_s > 0 then
  pin(sha, p.holder, p.pin_s)
else
  unpin(sha, p.holder)
end
return {pinned = true}
