-- Purpose  Looks after schedules: notes when each was first seen, takes or renews its lease, shows it.
-- KEYS     1 schedules (hash: id -> JSON)
-- ARGV     1 owner  2 lease in milliseconds  3 '1' to refresh what is shown
--          then per schedule: id, key of last (string), key of lease (string), newest trigger the caller
--          knows of ('' at first sight), JSON before and after the times
-- Returns  {now in milliseconds, then per schedule {last, holder of the lease} or {what is wrong with it}}
-- Note     What cannot be read is never taken for absent: that would be a first sight, and lose a trigger.
--          Last grows and never shrinks, also if it was lost or set back by others.
local shown, owner, lease_ms, refresh = KEYS[1], ARGV[1], ARGV[2], ARGV[3] == '1'
local time = redis.call('TIME')
local now = tonumber(time[1])
local out = { string.format('%d', now * 1000 + math.floor(time[2] / 1000)) }

local function read(key)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' and value.err then return nil, value.err end
  return value or nil
end

local function look(id, last_key, lease_key, known, head, tail)
  local text, wrong = read(last_key)
  local last = text and tonumber(text)
  if text and not (last and math.abs(last) < 1e15) then wrong = 'ERR ' .. last_key .. ' holds no number' end
  local holder, bad = read(lease_key)
  if wrong or bad then return { wrong or bad } end
  local least = tonumber(known) or now
  if not last or (known ~= '' and least > last) then
    last = least
    redis.call('SET', last_key, string.format('%d', last))
  end
  if not holder then
    redis.call('SET', lease_key, owner, 'PX', lease_ms)
    holder = owner
  elseif holder == owner then
    redis.call('PEXPIRE', lease_key, lease_ms)
  end
  local before = redis.pcall('HGET', shown, id)
  if type(before) == 'table' then before = '' end -- another type of key: nobody can be shown anything
  if refresh or not before then
    local since = string.match(before or '', '"registered_at":(%d+)') or string.format('%d', now)
    redis.pcall('HSET', shown, id, head .. since .. ',"last_seen":' .. string.format('%d', now) .. tail)
  end
  return { string.format('%d', last), holder }
end

for i = 4, #ARGV, 6 do
  out[#out + 1] = look(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
end
return out
