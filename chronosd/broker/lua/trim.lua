-- Purpose  Deletes finished tasks of one set: those past their time, then the oldest above a number.
-- KEYS     1 archived or completed (zset)
-- ARGV     1 task key prefix  2 the set's state (a number)  3 age in milliseconds: a score this far in the past has passed ('' = no limit)
--          4 the most to keep (0 = no limit)  5 the most to delete in one call
-- Returns  {deleted by age, deleted by number}
-- Note     A task that is in another state by now only leaves the set: it is alive.
--          A unique lock has gone with the task's end, unless chronos-go ended it and died before it could let go:
--          such a one goes with the task. Long messages are not read for it: it has a TTL.
--#include unique
local set, prefix, state, age = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local keep, limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

local READ = 4096

local function drop(ids)
  if #ids == 0 then return 0 end
  local keys = {}
  for _, id in ipairs(ids) do
    local key = prefix .. id
    local stored = redis.pcall('HGET', key, 'state')
    if stored == state or stored == false then
      keys[#keys + 1] = key
      if stored and redis.call('HSTRLEN', key, 'msg') < READ then
        local lock = lock_of(redis.call('HGET', key, 'msg'), prefix)
        if lock then unlock(lock, id) end
      end
    end
  end
  if #keys > 0 then redis.call('DEL', unpack(keys)) end
  redis.call('ZREM', set, unpack(ids))
  return #ids
end

local aged, trimmed = 0, 0
if age ~= '' then
  local past = string.format('%.6f', now - tonumber(age) / 1000)
  aged = drop(redis.call('ZRANGEBYSCORE', set, '-inf', past, 'LIMIT', 0, limit))
end
if keep > 0 and aged < limit then
  local over = math.min(redis.call('ZCARD', set) - keep, limit - aged)
  if over > 0 then trimmed = drop(redis.call('ZRANGE', set, 0, over - 1)) end
end
return { aged, trimmed }
