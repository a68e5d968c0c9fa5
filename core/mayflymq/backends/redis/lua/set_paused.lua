-- Pauses or resumes the queue. ASKED: 1 or 0.
if not REGISTERED then
  return 'UNREGISTERED'
end
if ASKED[1] == 1 then
  redis.call('HSET', META, 'paused', 1)
else
  redis.call('HDEL', META, 'paused')
end
return 'OK'
