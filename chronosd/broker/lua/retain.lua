-- Purpose  Ends tasks that succeeded and leave something: themselves, kept for their retention with their
--          results, or what follows them, or both. If what follows cannot be done (another queue's key is
--          of the wrong type), the task is dead-lettered with the reason: run again, it goes on.
-- KEYS     1 stream (stream)  2 completed (zset, score = expiry in unix seconds)  3 archived (zset, died at)
-- ARGV     1 group  2 task key prefix  3 '1' if fetch delivered them (see owns.lua), else ''
--          then per task: entry, id, unique lock key ('' = none), msg ('' = it is not kept), retention in
--          seconds, and what follows it (see follow.lua)
-- Returns  {the entries that were no longer pending (lost): nothing was changed for those,
--          ids and reasons of those that were dead-lettered, alternating}
-- Note     Of a task that was deleted while it ran nothing follows but its group's being told: that must not
--          wait for it for ever.
--#include owns
--#include trace
--#include follow
local stream, completed, archived = KEYS[1], KEYS[2], KEYS[3]
local group, prefix, taken = ARGV[1], ARGV[2], ARGV[3] == '1'
redis.call('ZCARD', completed) -- these raise, before anything is written, if that is no sorted set
redis.call('ZCARD', archived)
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local lost, parked = {}, {}
local i = 4

while i <= #ARGV do
  local entry, id, lock, msg, keep = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  local mine, gone, problem = false, false, nil
  if redis.call('XACK', stream, group, entry) == 0 then
    lost[#lost + 1] = entry
    i = follow(i + 5, false, now)
  else
    redis.call('XDEL', stream, entry)
    local key = prefix .. id
    mine, gone = owns(stream, group, key, entry, taken)
    carried = ARGV[i + 5] ~= '0' and trace_of(key) or nil
    i, problem = follow(i + 5, mine or (gone and 'reports'), now)
    if mine and problem then
      redis.call('HSET', key, 'state', '5', 'error', 'what follows it could not be enqueued: ' .. problem)
      redis.call('HDEL', key, 'sid', 'run')
      redis.call('ZADD', archived, string.format('%.6f', now), id)
      parked[#parked + 1] = id
      parked[#parked + 1] = problem
    elseif mine and msg == '' then
      redis.call('DEL', key)
    elseif mine then
      redis.call('HSET', key, 'msg', msg, 'state', '3')
      redis.call(
        'HDEL', key, 'sid', 'run', 'crashes', 'evidence', 'returned', 'unknown_since', 'free_starts', 'error'
      )
      redis.call('ZADD', completed, string.format('%.6f', now + keep), id)
    end
    if lock ~= '' and (mine or gone) and redis.pcall('GET', lock) == id then redis.pcall('DEL', lock) end
  end
end
return { lost, parked }
