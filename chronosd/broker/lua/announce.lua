-- Purpose  Tells others that a daemon runs, and with which recover_min_idle; forgets those long gone.
-- KEYS     1 daemons (zset: "name milliseconds", score = last heard of, unix seconds)
-- ARGV     1 name and milliseconds, parted by a space
-- Returns  how many were heard of in the last hour
local daemons, said = KEYS[1], ARGV[1]
local now = redis.call('TIME')[1]

redis.call('ZADD', daemons, now, said)
redis.call('ZREMRANGEBYSCORE', daemons, '-inf', now - 3600)
redis.call('EXPIRE', daemons, 3600)
return redis.call('ZCARD', daemons)
