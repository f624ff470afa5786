-- Part of other scripts, which include unique.lua before it.
local HELD = 31536000 -- seconds for which a group waits for a dead letter to be run again

-- Has the group of a member wait for it as for any dead letter. Its keys are made of the message's text: what is
-- there only ever lives longer for it.
local function hold_group(msg, prefix)
  local queue, id = text_of(msg, 'group_queue'), text_of(msg, 'group_id')
  if not queue or not id or string.find(queue, '[{}]') then return end
  local group = string.match(prefix, '^[^{]*') .. '{' .. queue .. '}:group'
  for _, key in ipairs({ group .. ':' .. id, group .. 'result:' .. id }) do
    local left = redis.pcall('TTL', key)
    if type(left) == 'number' and left < HELD then redis.pcall('EXPIRE', key, HELD) end
  end
end

-- Dead-letters the task of a run that was cancelled and now would run again, whatever brought it here: a failure,
-- a hand-back, the death of its worker. One that asked for no dead letter is deleted. The message is read as text:
-- no script parses one. No task follows: whoever has cancelled it knows.
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
  hold_group(task[2], prefix)
  return true
end
