-- Purpose  Gives tasks another attempt: after a delay, or at once as new stream entries.
-- KEYS     1 stream (stream)  2 retry (zset, score = due in unix seconds)
--          3 archived (zset, score = died at, unix seconds)
-- ARGV     1 group  2 task key prefix  3 '1' if fetch delivered them (see owns.lua), else ''
--          then per task: entry, id, unique lock key ('' = none), msg ('' = unchanged), delay in milliseconds
--          (0 = at once), n, and n times: hash field, value ('' = delete the field)
-- Returns  {the entries that were no longer pending (lost): nothing was changed for those, those whose run had
--          been cancelled: they are ended instead (see ending.lua)}
-- Note     A task that this run does not own any more is only acknowledged.
--          A lock lives at least its TTL from when the task is due again, a minute where nobody has noted it
--          (chronos-go): a twin would run beside this task's next attempt.
--#include owns
--#include unique
--#include ending
--#include ready
--#include write
local stream, retry, group, prefix, taken = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3] == '1'
redis.call('ZCARD', retry) -- raises, before anything is written, if that is no sorted set
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local lost, cancelled = {}, {}
local i = 4

while i <= #ARGV do
  local entry, id, lock, msg, delay = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  local n = tonumber(ARGV[i + 5])
  if redis.call('XACK', stream, group, entry) == 0 then
    lost[#lost + 1] = entry
  else
    redis.call('XDEL', stream, entry)
    local key = prefix .. id
    local mine = owns(stream, group, key, entry, taken)
    if mine and end_if_cancelled(prefix, id, entry, KEYS[3], now) then
      cancelled[#cancelled + 1] = entry
    elseif mine then
      if msg ~= '' then redis.call('HSET', key, 'msg', msg) end
      write(key, i + 6, n)
      if delay > 0 then
        redis.call('HSET', key, 'state', '4', 'sid', '')
        redis.call('ZADD', retry, string.format('%.6f', now + delay / 1000), id)
      else
        redis.call('HSET', key, 'state', '1', 'sid', '')
        ready(stream, id, prefix, now)
      end
      if lock ~= '' then
        hold(lock, id, delay + lock_ms(redis.call('HGET', key, 'unique_ttl'), 60000), prefix)
      end
    end
  end
  i = i + 6 + 2 * n
end
return { lost, cancelled }
