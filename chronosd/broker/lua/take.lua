-- Part of other scripts, which include trace.lua before it: what a fetch does with an entry that is the
-- consumer's own.
-- Expects the locals stream, group, consumer, prefix (of task keys), budget (message bytes that one reply may
-- carry), sets (sorted set by state), and fills rows, gone and n (length of rows).
local function drop(entry, id)
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
  gone[#gone + 1] = id
end

local function elsewhere(id, state, sid, entry)
  local set = sets[state]
  if set then return type(redis.pcall('ZSCORE', set, id)) == 'string' end
  if state ~= '2' or not sid or sid == '' or sid == entry then return false end
  local pending = redis.pcall('XPENDING', stream, group, sid, sid, 1)
  return not pending.err and #pending > 0 and #redis.call('XRANGE', stream, sid, sid) > 0
end

local function take(entry, fields)
  local id = false
  for f = 1, #fields, 2 do
    if fields[f] == 'task_id' then id = fields[f + 1] end
  end
  local msg, crashes, unknown, free, trace = false, false, false, false, false
  if not id or id == '' then
    id = false
    msg = string.sub(table.concat(fields, ' '), 1, 65536)
  else
    local key = prefix .. id
    local task = redis.pcall(
      'HMGET', key, 'msg', 'state', 'crashes', 'unknown_since', 'sid', 'free_starts', 'traceparent'
    )
    if task.err or not task[1] then
      drop(entry, id)
      if not task.err then redis.call('DEL', key) end -- a state without a message: a zombie of a stale move
      return
    end
    if task[2] ~= '1' and elsewhere(id, task[2], task[5], entry) then return drop(entry, id) end
    redis.call('HSET', key, 'state', '2', 'sid', entry)
    crashes, unknown, free, trace = task[3], task[4], task[6], task[7]
    if trace then trace = trace_of(key) end
    if #task[1] <= budget then
      budget = budget - #task[1]
      msg = task[1]
    end
  end
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4], rows[n + 5] = entry, id, msg, crashes, unknown
  rows[n + 6], rows[n + 7] = free, trace
  n = n + 7
end

-- Takes in an entry that is pending for the consumer.
local function take_own(entry)
  local found = redis.call('XRANGE', stream, entry, entry)[1]
  if found then
    -- A server at its memory limit takes no HSET as a script's first write, but any after this one.
    redis.call('XCLAIM', stream, group, consumer, 0, entry, 'JUSTID')
    take(entry, found[2])
  else
    redis.call('XACK', stream, group, entry) -- deleted or trimmed while it was pending
  end
end

-- Takes in the entries that were delivered to the consumer before, named in ARGV from `first` on.
local function take_in(first)
  for i = first, #ARGV do
    local entry = ARGV[i]
    local owner = redis.call('XPENDING', stream, group, entry, entry, 1)[1]
    if owner and owner[2] == consumer then take_own(entry) end
  end
end
