-- Purpose  Deletes tasks, with their unique locks, wherever they are. What runs is left alone unless it is
--          forced.
-- KEYS     1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)
-- ARGV     1 group  2 task key prefix  3 '1' = also what runs
--          then per task: id ('' = its entry names none), entry ('' = not known), state that it must be in
--          ('' = any), and what follows (see follow.lua)
-- Returns  per task: 'deleted' | 'active' | 'absent' | 'changed' (it is in another state by now)
-- Note     The entry of a waiting task is looked for near the time at which it was enqueued. One that is not
--          found stays, as does that of a running one: whoever meets it finds no task and drops it.
--#include unique
--#include trace
--#include follow
local stream, group, prefix, force = KEYS[1], ARGV[1], ARGV[2], ARGV[3] == '1'
local to_search = 2000 -- entries, by one call
local out = {}
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

local function is_delivered(entry)
  local pending = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  return not pending.err and #pending > 0
end

local function entry_of(id, enqueued_at)
  if not enqueued_at or to_search <= 0 then return nil end
  local most = math.min(to_search, 1000)
  local near = redis.pcall('XRANGE', stream, string.format('%d', enqueued_at - 2), '+', 'COUNT', most)
  if near.err then return nil end
  to_search = to_search - #near
  for _, item in ipairs(near) do
    for f = 1, #item[2], 2 do
      if item[2][f] == 'task_id' and item[2][f + 1] == id then return item[1] end
    end
  end
  return nil
end

local function delete(id, entry, expected)
  if entry ~= '' and is_delivered(entry) then return 'active' end
  if id == '' then
    redis.pcall('XDEL', stream, entry)
    return 'deleted'
  end
  local key = prefix .. id
  local task = redis.pcall('HMGET', key, 'msg', 'state', 'enqueued_at')
  if task.err then return 'absent' end
  local state = task[2]
  if task[1] then
    if state == '2' and not force then return 'active' end
    if expected ~= '' and state ~= expected then return 'changed' end
    local lock = lock_of(task[1], prefix)
    if lock then unlock(lock, id) end
  end
  redis.call('DEL', key)
  for k = 2, 5 do redis.pcall('ZREM', KEYS[k], id) end
  if entry == '' and state == '1' then
    entry = entry_of(id, tonumber(task[3] or '')) or ''
    -- a blocking read may have delivered it, and nobody has taken it in yet
    if entry ~= '' then redis.pcall('XACK', stream, group, entry) end
  end
  if entry ~= '' then redis.pcall('XDEL', stream, entry) end -- if it is no stream any more, it is gone
  return task[1] and 'deleted' or 'absent'
end

local i = 4
while i <= #ARGV do
  local word = delete(ARGV[i], ARGV[i + 1], ARGV[i + 2])
  out[#out + 1] = word
  i = follow(i + 3, word == 'deleted', now)
end
return out
