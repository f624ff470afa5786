-- Purpose  Keeps with a running task what was found out about its run, if it is still that run's.
-- KEYS     1 stream (stream; not touched, it names the slot)
-- ARGV     1 task key, 2 entry, 3 field, 4 value
-- Returns  1, or 0 if the entry does not own the task any more
local key, entry, field, value = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.pcall('HGET', key, 'sid') ~= entry then return 0 end
redis.call('HSET', key, field, value)
return 1
