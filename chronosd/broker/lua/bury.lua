-- Purpose  Dead-letters a stream entry that names no task: what it held becomes a record of its own.
-- KEYS     1 stream (stream)  2 archived (zset, score = died at, unix seconds)
-- ARGV     1 group  2 task key prefix  3 entry  4 id of the new record  5 its msg
--          6 what follows it (see follow.lua)
-- Returns  'archived' | 'lost' (no longer pending: nothing was changed)
--#include trace
--#include follow
local stream, archived, group, prefix = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local entry, id, msg = ARGV[3], ARGV[4], ARGV[5]
redis.call('ZCARD', archived) -- raises, before anything is written, if that is no sorted set
local now = redis.call('TIME')[1]

if redis.call('XACK', stream, group, entry) == 0 then return 'lost' end
redis.call('XDEL', stream, entry)
redis.call('HSET', prefix .. id, 'msg', msg, 'state', '5')
redis.call('ZADD', archived, now, id)
follow(6, true, tonumber(now))
return 'archived'
