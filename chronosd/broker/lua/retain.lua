-- Purpose  Ends tasks that succeeded and leave something: themselves, kept for their retention with their
--          results, or what follows them, or both.
-- KEYS     1 stream (stream)  2 completed (zset, score = expiry in unix seconds)
-- ARGV     1 group  2 task key prefix  3 '1' if fetch delivered them (see owns.lua), else ''
--          then per task: entry, id, unique lock key ('' = none), msg ('' = it is not kept), retention in
--          seconds, and what follows it (see follow.lua)
-- Returns  the entries that were no longer pending (lost): nothing was changed for those
--#include owns
--#include follow
local stream, completed, group, prefix, taken = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3] == '1'
redis.call('ZCARD', completed) -- raises, before anything is written, if that is no sorted set
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local lost = {}
local i = 4

while i <= #ARGV do
  local entry, id, lock, msg, keep = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  local mine, gone = false, false
  if redis.call('XACK', stream, group, entry) == 0 then
    lost[#lost + 1] = entry
  else
    redis.call('XDEL', stream, entry)
    local key = prefix .. id
    mine, gone = owns(stream, group, key, entry, taken)
    if mine and msg == '' then
      redis.call('DEL', key)
    elseif mine then
      redis.call('HSET', key, 'msg', msg, 'state', '3')
      redis.call('HDEL', key, 'sid', 'run', 'crashes', 'evidence', 'returned', 'unknown_since', 'free_starts')
      redis.call('ZADD', completed, string.format('%.6f', now + keep), id)
    end
    if lock ~= '' and (mine or gone) and redis.pcall('GET', lock) == id then redis.pcall('DEL', lock) end
  end
  i = follow(i + 5, mine, now)
end
return lost
