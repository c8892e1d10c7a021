-- Deliveries whose waiting time is over go back to the stream. p: group, limit, forget_ms
redis.pcall('XGROUP', 'CREATE', K.webhooks, p.group, '0', 'MKSTREAM')
for _, text in ipairs(call('ZRANGEBYSCORE', K.webhooks_due, '-inf', now(), 'LIMIT', 0, p.limit)) do
  local due = cjson.decode(text)
  call('XADD', K.webhooks, '*', 'job', due.job, 'event', due.event, 'attempt', due.attempt)
  call('ZREM', K.webhooks_due, text)
end
-- Every process that ever delivered is a consumer by its own name.
for _, consumer in ipairs(call('XINFO', 'CONSUMERS', K.webhooks, p.group)) do
  local name, pending, idle = consumer[2], consumer[4], consumer[6]
  if pending == 0 and idle > p.forget_ms then
    call('XGROUP', 'DELCONSUMER', K.webhooks, p.group, name)
  end
end
return {}
