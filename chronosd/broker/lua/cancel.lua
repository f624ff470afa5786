-- Purpose  Marks the run of one task as cancelled, so that its worker ends it and nobody runs it again.
-- KEYS     1 stream (stream)  2 the task's hash  3 cancelled (zset: "entry force id", score = marked at,
--          unix seconds)
-- ARGV     1 group  2 id  3 '1' if its worker may be killed for it, else '0'
-- Returns  'marked' | 'waiting' (it does not run) | 'foreign' (it runs, but not on a worker of ours)
--          | 'ended' | 'absent'
-- Note     A mark names the run that it is for; a later run of the same id is another matter.
local stream, key, marks, group, id, force = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3]
local task = redis.pcall('HMGET', key, 'state', 'sid')
if task.err or redis.call('HEXISTS', key, 'msg') == 0 then return 'absent' end
local state, sid = task[1], task[2]

if state == '3' or state == '5' then return 'ended' end
if state ~= '2' then return 'waiting' end
local owner = sid and sid ~= '' and redis.pcall('XPENDING', stream, group, sid, sid, 1)
if not owner or owner.err or not owner[1] then return 'foreign' end
local now = redis.call('TIME')[1]
redis.call('ZREM', marks, sid .. ' ' .. (force == '1' and '0' or '1') .. ' ' .. id)
redis.call('ZADD', marks, now, sid .. ' ' .. force .. ' ' .. id)
redis.call('EXPIRE', marks, 604800)
redis.call('HSET', key, 'cancel', sid)
return 'marked'
