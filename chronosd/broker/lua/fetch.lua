-- Purpose  Delivers ready tasks of one queue to a consumer, with their messages, and marks them active.
--          Entries that a blocking read has already delivered to it are taken in by the same step.
-- KEYS     1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)
-- ARGV     1 group  2 consumer  3 count (entries to read; 0 = none)  4 task key prefix
--          5 budget (message bytes that one reply may carry)
--          then the ids of entries already delivered
-- Returns  {rows, gone}: rows flat, five a task: entry, id, msg, crashes, unknown_since.
--          id is false for an entry that names no task; msg then holds its fields as text.
--          msg is false where the budget is spent: read it singly.
--          gone: ids whose task no longer exists; their entries are acknowledged and deleted.
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local count, prefix, budget = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local sets = { ['6'] = KEYS[2], ['4'] = KEYS[3], ['5'] = KEYS[4], ['3'] = KEYS[5] }
local rows, gone, n = {}, {}, 0

local function take(entry, fields)
  local id = false
  for f = 1, #fields, 2 do
    if fields[f] == 'task_id' then id = fields[f + 1] end
  end
  local msg, crashes, unknown = false, false, false
  if not id then
    msg = string.sub(table.concat(fields, ' '), 1, 65536)
  else
    local key = prefix .. id
    local task = redis.pcall('HMGET', key, 'msg', 'state', 'crashes', 'unknown_since')
    if task.err or not task[1] then
      redis.call('XACK', stream, group, entry)
      redis.call('XDEL', stream, entry)
      if not task.err then redis.call('DEL', key) end -- a state without a message: a zombie of a stale move
      gone[#gone + 1] = id
      return
    end
    local set = sets[task[2]]
    if set then redis.pcall('ZREM', set, id) end -- one place only; costs nothing in the usual case
    redis.call('HSET', key, 'state', '2', 'sid', entry)
    crashes, unknown = task[3], task[4]
    budget = budget - #task[1]
    if budget >= 0 or n == 0 then msg = task[1] end
  end
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4], rows[n + 5] = entry, id, msg, crashes, unknown
  n = n + 5
end

for i = 6, #ARGV do
  local entry = ARGV[i]
  local owner = redis.call('XPENDING', stream, group, entry, entry, 1)[1]
  if owner and owner[2] == consumer then
    local found = redis.call('XRANGE', stream, entry, entry)[1]
    if found then
      take(entry, found[2])
    else
      redis.call('XACK', stream, group, entry) -- deleted or trimmed while it was pending
    end
  end
end
if count > 0 then
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', stream, '>')
  if read then
    for _, item in ipairs(read[1][2]) do take(item[1], item[2]) end
  end
end
return { rows, gone }
