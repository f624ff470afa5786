-- Part of other scripts. The trace context of a task (W3C): in its hash, and on the way there.

-- Takes a mode apart that may be followed by a space and 'traceparent' or 'traceparent tracestate'.
local function mode_and_trace(mode)
  if #mode <= 3 then return mode, nil end
  return string.match(mode, '^(%S+) (.*)$')
end

local function leave_trace(key, trace)
  local parent, state = string.match(trace, '^(%S+) ?(.*)$')
  if not parent then return end -- a field of a hash may hold anything
  redis.call('HSET', key, 'traceparent', parent)
  if state ~= '' then redis.call('HSET', key, 'tracestate', state) end
end

-- What leave_trace has left, or nil.
local function trace_of(key)
  local found = redis.pcall('HMGET', key, 'traceparent', 'tracestate')
  if found.err or not found[1] then return nil end
  return found[2] and found[1] .. ' ' .. found[2] or found[1]
end
