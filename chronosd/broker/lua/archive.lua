-- Purpose  Dead-letters tasks: keeps each, with its last error, until an operator or the janitor ends it.
-- KEYS     1 stream (stream)  2 archived (zset, score = died at, unix seconds)
-- ARGV     1 group  2 task key prefix  3 '1' if fetch delivered them (see owns.lua), else ''
--          then per task: entry, id, unique lock key ('' = none, or read off the message that stays as it is),
--          msg ('' = unchanged), n, and n times: hash field, value ('' = delete the field), then what follows it
--          (see follow.lua)
-- Returns  the entries that were no longer pending (lost): nothing was changed for those
--#include trace
--#include follow
--#include owns
--#include unique
--#include write
local stream, archived, group, prefix, taken = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3] == '1'
redis.call('ZCARD', archived) -- raises, before anything is written, if that is no sorted set
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local lost = {}
local i = 4

while i <= #ARGV do
  local entry, id, lock, msg, n = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  local mine, gone = false, false
  if redis.call('XACK', stream, group, entry) == 0 then
    lost[#lost + 1] = entry
  else
    redis.call('XDEL', stream, entry)
    local key = prefix .. id
    mine, gone = owns(stream, group, key, entry, taken)
    if mine then
      if lock == '' and msg == '' then lock = lock_of(redis.call('HGET', key, 'msg'), prefix) or '' end
      if msg ~= '' then redis.call('HSET', key, 'msg', msg) end
      redis.call('HSET', key, 'state', '5')
      redis.call('HDEL', key, 'sid', 'run')
      write(key, i + 5, n)
      redis.call('ZADD', archived, string.format('%.6f', now), id)
    end
    if lock ~= '' and (mine or gone) and redis.pcall('GET', lock) == id then redis.pcall('DEL', lock) end
  end
  local f = i + 5 + 2 * n
  carried = mine and ARGV[f] ~= '0' and trace_of(prefix .. id) or nil
  i = follow(f, mine, now)
end
return lost
