-- Purpose  Makes due tasks of one waiting set ready, oldest first.
-- KEYS     1 stream (stream)  2 scheduled or retry (zset, score = due in unix seconds)
-- ARGV     1 task key prefix  2 the most to move
-- Returns  {moved, dropped, milliseconds until the next is due, or '' for none}
--          dropped: ids whose message is gone
local stream, set, prefix, limit = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local due = redis.call('ZRANGEBYSCORE', set, '-inf', string.format('%.6f', now), 'LIMIT', 0, limit)
local moved, dropped = 0, 0

for _, id in ipairs(due) do
  local key = prefix .. id
  if redis.pcall('HEXISTS', key, 'msg') == 1 then
    redis.call('HSET', key, 'state', '1', 'sid', '')
    redis.call('XADD', stream, '*', 'task_id', id)
    moved = moved + 1
  else
    redis.pcall('HDEL', key, 'state', 'sid', 'run')
    dropped = dropped + 1
  end
end
if #due > 0 then redis.call('ZREM', set, unpack(due)) end
local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
local wait = ''
if first[2] then wait = string.format('%d', math.max(0, math.ceil((tonumber(first[2]) - now) * 1000))) end
return { moved, dropped, wait }
