-- Part of other scripts, which include unique.lua before it. Dead-letters the task of a run that was cancelled
-- and now would run again, whatever brought it here: a failure, a hand-back, the death of its worker. One that
-- asked for no dead letter is deleted. The message is read as text: no script parses one.
-- Returns whether it was cancelled; false changes nothing. `prefix` is the task key prefix.
local function end_if_cancelled(prefix, id, entry, archived, now)
  local key = prefix .. id
  local task = redis.pcall('HMGET', key, 'cancel', 'msg')
  if task.err or task[1] ~= entry or not task[2] then return false end
  if type(redis.pcall('ZCARD', archived)) == 'table' then return false end -- no sorted set: it must not be lost
  local lock = lock_of(task[2], prefix)
  if lock then unlock(lock, id) end
  if string.find(task[2], '"no_archive":true', 1, true) then
    redis.call('DEL', key)
    return true
  end
  redis.call('HSET', key, 'state', '5', 'error', 'cancelled')
  redis.call('HDEL', key, 'sid', 'run')
  redis.call('ZADD', archived, string.format('%.6f', now), id)
  return true
end
