-- Jobs that ask for the same video: one of them is computed, and the others wait for it outside the queue.
-- Follows shared.lua in every transition.

-- Has a job computed, or lets it wait for one that is. True when it is to be queued.
local function join_twins(id, twin, rank)
  set(id, 'twin', twin)
  local first = call('GET', K.twin .. twin)
  if not first then
    call('SET', K.twin .. twin, id)
    return true
  end
  set(id, 'follows', first)
  call('ZADD', K.twins .. first, rank, id)
  call('SADD', K.following .. get(id, 'kind'), id)
  -- It is as urgent as the most urgent of those that wait for it.
  if rank < tonumber(get(first, 'rank')) then
    set(first, 'rank', rank)
    if get(first, 'status') == 'queued' then
      enqueue(first)
    end
  end
  return false
end

-- Those that wait for a job, most urgent first. From here on they do not, and a job like it is computed by itself.
local function take_followers(id)
  local at = call('HMGET', K.job .. id, 'twin', 'follows', 'kind')
  if not at[1] then
    return {}
  end
  call('HDEL', K.job .. id, 'twin', 'follows')
  if at[2] then
    call('ZREM', K.twins .. at[2], id)
    call('SREM', K.following .. at[3], id)
    return {}
  end
  local followers = call('ZRANGE', K.twins .. id, 0, -1)
  call('DEL', K.twins .. id, K.twin .. at[1])
  for _, follower in ipairs(followers) do
    call('HDEL', K.job .. follower, 'twin', 'follows')
    call('SREM', K.following .. at[3], follower)
  end
  return followers
end

-- A job ends without its video: the most urgent of those that wait for it takes its place.
local function pass_on(id)
  local twin = get(id, 'twin')
  for _, follower in ipairs(take_followers(id)) do
    local at = call('HMGET', K.job .. follower, 'kind', 'rank', 'work')
    if join_twins(follower, twin, tonumber(at[2])) then
      if at[3] then
        call('HSET', K.work .. at[1], follower, at[3])
      end
      enqueue(follower)
    end
  end
end
