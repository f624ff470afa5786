-- Purpose  Ends tasks that succeeded and are kept, with their results, for their retention.
-- KEYS     1 stream (stream)  2 completed (zset, score = expiry in unix seconds)
-- ARGV     1 group  2 task key prefix  3 '1' if fetch delivered them (see owns.lua), else ''
--          then per task: entry, id, unique lock key ('' = none), msg, retention in seconds
-- Returns  the entries that were no longer pending (lost): nothing was changed for those
--#include owns
local stream, completed, group, prefix, taken = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3] == '1'
redis.call('ZCARD', completed) -- raises, before anything is written, if that is no sorted set
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local lost = {}

for i = 4, #ARGV, 5 do
  local entry, id, lock, msg, keep = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  if redis.call('XACK', stream, group, entry) == 0 then
    lost[#lost + 1] = entry
  else
    redis.call('XDEL', stream, entry)
    local key = prefix .. id
    local mine, gone = owns(stream, group, key, entry, taken)
    if mine then
      redis.call('HSET', key, 'msg', msg, 'state', '3')
      redis.call('HDEL', key, 'sid', 'run', 'crashes', 'evidence', 'returned', 'unknown_since', 'free_starts')
      redis.call('ZADD', completed, string.format('%.6f', now + keep), id)
    end
    if lock ~= '' and (mine or gone) and redis.pcall('GET', lock) == id then redis.pcall('DEL', lock) end
  end
end
return lost
