-- A file that somebody is about to name in a job. p: sha, hold, seconds
ref(p.sha, p.hold)
call('ZADD', K.holds, now() + p.seconds, p.sha .. ' ' .. p.hold)
return {}
