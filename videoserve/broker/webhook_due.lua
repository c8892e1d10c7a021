-- Deliveries whose waiting time is over go back to the stream. p: group, limit
redis.pcall('XGROUP', 'CREATE', K.webhooks, p.group, '0', 'MKSTREAM')
for _, text in ipairs(call('ZRANGEBYSCORE', K.webhooks_due, '-inf', now(), 'LIMIT', 0, p.limit)) do
  local due = cjson.decode(text)
  call('XADD', K.webhooks, '*', 'job', due.job, 'event', due.event, 'attempt', due.attempt)
  call('ZREM', K.webhooks_due, text)
end
return {}
