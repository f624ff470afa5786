-- Purpose  Makes tasks ready at once that wait for a time, were dead-lettered, or are kept as completed.
-- KEYS     1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)
-- ARGV     1 task key prefix
--          then per task: id, SHA-1 of the message that msg was made of, msg ('' = it stays as it is)
-- Returns  per task three: 'moved' | 'pending' | 'active' (where it is already) | 'absent' | 'changed' (it has
--          another message by now) | 'duplicate' (another task has its unique lock); and then, for the last, that
--          task's id and state
-- Note     One that had ended begins anew: nothing is left of its crashes. It takes its lock again, for the TTL
--          that it was enqueued with, an hour where nobody has noted it. One that waits is only brought forward.
--#include unique
local stream, prefix = KEYS[1], ARGV[1]
local out, n = {}, 0
redis.call('XLEN', stream) -- raises, before anything is written, if that is no stream

local function move(id, sha, msg)
  local key = prefix .. id
  local task = redis.pcall('HMGET', key, 'msg', 'state', 'unique_ttl')
  if task.err or not task[1] then return 'absent' end
  local old, state = task[1], task[2]
  if state == '1' then return 'pending' end
  if state == '2' then return 'active' end
  if redis.sha1hex(old) ~= sha then return 'changed' end
  local lock, ended = lock_of(old, prefix), state == '3' or state == '5'
  if lock and ended then
    local holder, is = holder_of(lock, id, prefix)
    if holder then return 'duplicate', holder, is end
    if redis.pcall('GET', lock) ~= id then redis.call('DEL', lock) end -- of one that has ended
  end
  local scores = {}
  for k = 2, 5 do
    scores[k] = redis.pcall('ZSCORE', KEYS[k], id)
    redis.pcall('ZREM', KEYS[k], id)
  end
  local added = redis.pcall('XADD', stream, '*', 'task_id', id)
  if type(added) == 'table' then -- somebody has given an entry the last id that there is
    for k = 2, 5 do
      if type(scores[k]) == 'string' then redis.call('ZADD', KEYS[k], scores[k], id) end
    end
    return added
  end
  redis.call('HSET', key, 'state', '1', 'sid', '')
  if msg ~= '' then redis.call('HSET', key, 'msg', msg) end
  if ended then
    redis.call(
      'HDEL', key, 'run', 'crashes', 'evidence', 'blocked', 'returned', 'error', 'unknown_since', 'free_starts',
      'cancel'
    )
  end
  if lock then hold(lock, id, lock_ms(task[3], 3600000), prefix) end
  return 'moved'
end

for i = 2, #ARGV, 3 do
  local word, holder, state = move(ARGV[i], ARGV[i + 1], ARGV[i + 2])
  if type(word) == 'table' then return word end
  out[n + 1], out[n + 2], out[n + 3] = word, holder or '', state or ''
  n = n + 3
end
return out
