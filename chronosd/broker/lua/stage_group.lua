-- Purpose  Puts down messages of a group that is too large for one request. Nothing of it runs, and all of it
--          is forgotten, unless open_group.lua follows in time.
-- KEYS     1 messages (hash, member's index -> message)
-- ARGV     1 seconds for which they are kept  then per member: index, message
-- Returns  how many are there
local bodies, ttl = KEYS[1], ARGV[1]
for i = 2, #ARGV, 2 do redis.call('HSET', bodies, ARGV[i], ARGV[i + 1]) end
redis.call('EXPIRE', bodies, ttl)
return redis.call('HLEN', bodies)
