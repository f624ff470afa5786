-- Part of other scripts, which include trace.lua before it. Stores one new task; KEYS 1 to 5 are the stream and
-- the sets, as in enqueue.lua.
local call, stream, nothing = redis.call, KEYS[1], {}
local time = call('TIME')
local now = time[1] + time[2] / 1000000
local now_ms = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))

-- What is under the key (msg, state, nonce), and a word if nothing can be stored there: 'repeat' | 'conflict'.
local function known(key, nonce)
  if call('EXISTS', key) == 0 then return nothing, nil end
  local held = redis.pcall('HMGET', key, 'msg', 'state', 'nonce')
  if held.err then return held, 'conflict' end -- something that is no hash lives there
  if not held[1] then return held, nil end
  if nonce == '' or held[3] == nonce then return held, 'repeat' end
  if held[2] ~= '3' and held[2] ~= '5' then return held, 'conflict' end
  return held, nil
end

-- `ms` is a text. Returns 'pending' | 'scheduled', and the seconds until it is due.
local function place(key, held, id, nonce, msg, mode, ms)
  local trace = nil
  if #mode > 3 then mode, trace = mode_and_trace(mode) end
  local word, state, wait, others = 'pending', '1', 0, 2
  -- The place first: a key of another type there must not leave a body behind that blocks its id, nor take away
  -- what is kept of an earlier task of that id.
  if mode == 'now' or (mode == 'at' and tonumber(ms) / 1000 <= now) then
    call('XADD', stream, '*', 'task_id', id)
  else
    local due = tonumber(ms) / 1000 + (mode == 'in' and now or 0)
    call('ZADD', KEYS[2], string.format('%.6f', due), id)
    word, state, wait, others = 'scheduled', '6', due - now, 3
  end
  -- An id of the caller's own may have been used before: ended, deleted by hand, or half of it left.
  if nonce ~= '' or held[1] or held[2] or held[3] then
    call('DEL', key)
    for k = others, 5 do redis.pcall('ZREM', KEYS[k], id) end
  end
  call('HSET', key, 'msg', msg, 'state', state, 'enqueued_at', now_ms)
  if nonce ~= '' then call('HSET', key, 'nonce', nonce) end
  if trace then leave_trace(key, trace) end
  return word, wait
end
