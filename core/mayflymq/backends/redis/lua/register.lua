-- Makes the queue known here, after its name was written to the registry. ARGV: generation. Returns the generation.
redis.call('HSETNX', META, 'registered', text())
return redis.call('HGET', META, 'registered')
