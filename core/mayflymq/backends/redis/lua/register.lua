-- Makes the queue known here, after its name was written to the registry. ASKED: generation. Returns the generation.
redis.call('HSETNX', META, 'registered', ASKED[1])
return redis.call('HGET', META, 'registered')
