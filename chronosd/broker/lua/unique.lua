-- Part of other scripts. A unique lock: a key with a TTL whose value is the id of the task that holds it.
-- It is only ever lengthened, and released only for its holder.

local function is_own(lock, prefix)
  local own = string.sub(prefix, 1, -3) .. 'unique:'
  return string.sub(lock, 1, #own) == own
end

-- What stands in a message under a name, if it is a string with anything in it; else nil. Read off its text, for
-- no script parses one. Inside a string the quotes round the name would be escaped.
local function text_of(msg, name)
  name = '"' .. name .. '"'
  local _, at = string.find(msg, name, 1, true)
  local first = nil
  while at and not first do -- what is not followed by a string is itself one, under another name
    _, first = string.find(msg, '^%s*:%s*"', at + 1)
    if not first then _, at = string.find(msg, name, at + 1, true) end
  end
  if not first or string.sub(msg, first + 1, first + 1) == '"' then return nil end
  local last = string.find(msg, '[^\\]"', first + 1)
  if not last then return nil end
  local found = string.gsub(string.sub(msg, first + 1, last), '\\u(%x%x%x%x)', function(hex)
    local code = tonumber(hex, 16)
    if code < 128 then return string.char(code) end
    local low = 128 + code % 64
    if code < 2048 then return string.char(192 + math.floor(code / 64), low) end
    return string.char(224 + math.floor(code / 4096), 128 + math.floor(code / 64) % 64, low)
  end)
  return (string.gsub(found, '\\(.)', '%1'))
end

-- The lock that a message names, nil for none. A key that is not the queue's own is no lock: messages are
-- anybody's. `prefix` is the task key prefix.
local function lock_of(msg, prefix)
  local lock = type(msg) == 'string' and text_of(msg, 'unique_key')
  return lock and is_own(lock, prefix) and lock or nil
end

local function unlock(lock, id)
  if redis.pcall('GET', lock) == id then redis.call('DEL', lock) end
end

-- For how many milliseconds a task is to hold its lock, by what is stored with it: anything may be. (Lua takes
-- nan and inf for numbers; Redis takes no TTL near the end of its clock.)
local function lock_ms(text, default)
  local ms = tonumber(text or '')
  if not ms or not (ms >= 1 and ms <= 1e14) then return default end
  return math.floor(ms)
end

-- The lock lives at least ms from now: taken if it is free, left alone if it is another's.
local function hold(lock, id, ms, prefix)
  if not is_own(lock, prefix) then return end
  local holder = redis.pcall('GET', lock)
  if holder == id then
    local left = redis.call('PTTL', lock)
    if left >= 0 and left < ms then redis.call('PEXPIRE', lock, ms) end
  elseif holder == false then
    redis.call('SET', lock, id, 'PX', ms)
  end
end

-- The id and state of another task that holds the lock and has not ended; nil if there is none. A holder that is
-- archived, completed or gone lets go: chronos-go ends a task first and releases its lock after, if it still can.
local function holder_of(lock, id, prefix)
  local holder = redis.pcall('GET', lock)
  if holder == false or holder == id then return nil end
  if type(holder) ~= 'string' then return '', '' end -- something else lives there
  local key = prefix .. holder
  if redis.pcall('HEXISTS', key, 'msg') ~= 1 then return nil end
  local state = redis.call('HGET', key, 'state')
  if state == '3' or state == '5' then return nil end
  return holder, state or ''
end
