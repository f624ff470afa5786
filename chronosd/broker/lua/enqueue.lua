-- Purpose  Stores new tasks of one queue and makes each ready, or due later. An id in use is refused.
-- KEYS     1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)
-- ARGV     1 task key prefix
--          then per task: id, nonce ('' = the id itself is unique to this call), msg,
--          mode: 'now' | 'in' | 'at', ms: delay or unix instant in milliseconds (0 with 'now')
-- Returns  per task: 'pending' | 'scheduled' | 'repeat' (this very call was stored before) | 'conflict'
local stream, prefix = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local now_ms = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))
local out = {}

for i = 2, #ARGV, 5 do
  local id, nonce, msg, mode, ms = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  local key = prefix .. id
  local held = redis.pcall('HMGET', key, 'msg', 'state', 'nonce')
  local word = nil
  if held.err then
    word = 'conflict' -- something that is no hash lives there
  elseif held[1] then
    local state = held[2]
    if nonce == '' or held[3] == nonce then
      word = 'repeat'
    elseif state ~= '3' and state ~= '5' then
      word = 'conflict'
    end
  end
  if not word then
    -- An id of the caller's own may have been used before: ended, deleted by hand, or half of it left.
    if nonce ~= '' or held[1] or held[2] or held[3] then
      redis.call('DEL', key)
      for k = 2, 5 do redis.call('ZREM', KEYS[k], id) end
    end
    if mode == 'now' or (mode == 'at' and ms / 1000 <= now) then
      -- the place first: a key of another type there must not leave a body behind that blocks its id
      redis.call('XADD', stream, '*', 'task_id', id)
      redis.call('HSET', key, 'msg', msg, 'state', '1', 'enqueued_at', now_ms, 'nonce', nonce)
      word = 'pending'
    else
      local due = mode == 'in' and now + ms / 1000 or ms / 1000
      redis.call('ZADD', KEYS[2], string.format('%.6f', due), id)
      redis.call('HSET', key, 'msg', msg, 'state', '6', 'enqueued_at', now_ms, 'nonce', nonce)
      word = 'scheduled'
    end
  end
  out[#out + 1] = word
end
return out
