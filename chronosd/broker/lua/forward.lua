-- Purpose  Makes due tasks of one waiting set ready, oldest first.
-- KEYS     1 stream (stream)  2 scheduled or retry (zset, score = due in unix seconds)
-- ARGV     1 task key prefix  2 the most to move
-- Returns  {moved, dropped, milliseconds until the next is due, or '' for none}
--          dropped: ids whose message is gone
-- Note     sid is left as it is: if chronos-go has scheduled the id of a task that runs here, that run must
--          not take the new task for its own.
local stream, set, prefix, limit = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
redis.call('XLEN', stream) -- raises, before anything is written, if that is no stream
local due = redis.call('ZRANGEBYSCORE', set, '-inf', string.format('%.6f', now), 'LIMIT', 0, limit)
local moved, dropped = 0, 0

-- First, because a server at its memory limit takes no HSET or XADD as a script's first write, but any after
-- it: what is due there runs and makes room.
if #due > 0 then redis.call('ZREM', set, unpack(due)) end
for place, id in ipairs(due) do
  local key = prefix .. id
  local known = redis.pcall('HEXISTS', key, 'msg')
  if known == 1 then
    local added = redis.pcall('XADD', stream, '*', 'task_id', id)
    if type(added) == 'table' then -- somebody has given an entry the last id that there is
      for i = place, #due do redis.call('ZADD', set, string.format('%.6f', now), due[i]) end
      return added
    end
    redis.call('HSET', key, 'state', '1')
    moved = moved + 1
  else
    if known == 0 then redis.call('DEL', key) end -- a state without a message: a zombie of a stale move
    dropped = dropped + 1
  end
end
local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
local wait = ''
if first[2] then -- a score may be infinite: %d knows no such number
  wait = string.format('%d', math.min(math.max(0, math.ceil((tonumber(first[2]) - now) * 1000)), 86400000))
end
return { moved, dropped, wait }
