-- Part of other scripts, which include trace.lua before it. Stores one new task; KEYS 1 to 5 are the stream and
-- the sets, as in enqueue.lua.
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local now_ms = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))

-- What is under the key (msg, state, nonce), and a word if nothing can be stored there: 'repeat' | 'conflict'.
local function known(key, nonce)
  local held = redis.pcall('HMGET', key, 'msg', 'state', 'nonce')
  if held.err then return held, 'conflict' end -- something that is no hash lives there
  if not held[1] then return held, nil end
  if nonce == '' or held[3] == nonce then return held, 'repeat' end
  if held[2] ~= '3' and held[2] ~= '5' then return held, 'conflict' end
  return held, nil
end

-- Returns 'pending' | 'scheduled', and the seconds until it is due.
local function place(key, held, id, nonce, msg, mode, ms)
  local trace = nil
  mode, trace = mode_and_trace(mode)
  local word, state, wait, others = 'pending', '1', 0, 2
  -- The place first: a key of another type there must not leave a body behind that blocks its id, nor take away
  -- what is kept of an earlier task of that id.
  if mode == 'now' or (mode == 'at' and ms / 1000 <= now) then
    redis.call('XADD', KEYS[1], '*', 'task_id', id)
  else
    local due = mode == 'in' and now + ms / 1000 or ms / 1000
    redis.call('ZADD', KEYS[2], string.format('%.6f', due), id)
    word, state, wait, others = 'scheduled', '6', due - now, 3
  end
  -- An id of the caller's own may have been used before: ended, deleted by hand, or half of it left.
  if nonce ~= '' or held[1] or held[2] or held[3] then
    redis.call('DEL', key)
    for k = others, 5 do redis.pcall('ZREM', KEYS[k], id) end
  end
  redis.call('HSET', key, 'msg', msg, 'state', state, 'enqueued_at', now_ms, 'nonce', nonce)
  if trace then leave_trace(key, trace) end
  return word, wait
end
