-- A delivery was made, must be tried again at `at`, or is given up.
-- p: group, entry, job, event, attempt (made so far), delivered, error?, at?
-- Zero means that another consumer has settled it.
if call('XACK', K.webhooks, p.group, p.entry) == 0 then
  return {}
end
call('XDEL', K.webhooks, p.entry)
if p.at then
  call('ZADD', K.webhooks_due, p.at, cjson.encode({job = p.job, event = p.event, attempt = p.attempt}))
elseif call('EXISTS', K.job .. p.job) == 1 then
  set(p.job, 'webhook', cjson.encode({delivered = p.delivered, attempts = p.attempt, error = p.error}))
  changed(p.job)
end
return {}
