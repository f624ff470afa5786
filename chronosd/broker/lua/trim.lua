-- Purpose  Deletes finished tasks of one set: those past their time, then the oldest above a number.
-- KEYS     1 archived or completed (zset)
-- ARGV     1 task key prefix  2 the set's state (a number)
--          3 age in milliseconds: a score this far in the past has passed ('' = no limit)
--          4 the most to keep (0 = no limit)  5 the most to delete in one call
-- Returns  {deleted by age, deleted by number, ids by age, ids by number: dead letters that may be members of
--          groups, to be deleted by who can read their messages; they are still there}
-- Note     A task that is in another state by now only leaves the set: it is alive.
--          A unique lock has gone with the task's end, unless chronos-go ended it and died before it could let
--          go: such a one goes with the task. Long messages are not read for it: it has a TTL.
--#include unique
local set, prefix, state, age = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local keep, limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

local READ = 4096

local function is_member(id)
  return state == '5' and (string.find(id, ':m%d+$') or string.find(id, ':m%d+:%d+$'))
end

-- Returns how many it deleted, and what it left because they may be members.
local function drop(ids)
  local keys, leaving, members = {}, {}, {}
  for _, id in ipairs(ids) do
    local key = prefix .. id
    local stored = redis.pcall('HGET', key, 'state')
    if stored == state and is_member(id) then
      members[#members + 1] = id
    else
      leaving[#leaving + 1] = id
    end
    if (stored == state and not is_member(id)) or stored == false then
      keys[#keys + 1] = key
      if stored and redis.call('HSTRLEN', key, 'msg') < READ then
        local lock = lock_of(redis.call('HGET', key, 'msg'), prefix)
        if lock then unlock(lock, id) end
      end
    end
  end
  if #keys > 0 then redis.call('DEL', unpack(keys)) end
  if #leaving > 0 then redis.call('ZREM', set, unpack(leaving)) end
  return #leaving, members
end

local aged, trimmed, old, many = 0, 0, {}, {}
if age ~= '' then
  local past = string.format('%.6f', now - tonumber(age) / 1000)
  aged, old = drop(redis.call('ZRANGEBYSCORE', set, '-inf', past, 'LIMIT', 0, limit))
end
if keep > 0 and aged + #old < limit then
  local over = math.min(redis.call('ZCARD', set) - #old - keep, limit - aged - #old) -- the old are still in front
  if over > 0 then trimmed, many = drop(redis.call('ZRANGE', set, #old, #old + over - 1)) end
end
return { aged, trimmed, old, many }
