-- Purpose  Tells, for one instant, what is stored of tasks and every place that each of them is in.
-- KEYS     1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)
-- ARGV     1 group  2 task key prefix  3 budget (message bytes that the reply may carry)
--          4 entry after which the stream is searched for the tasks' entries ('' = it is not)
--          then per task: id, n, and n stream entries that are known to name it
-- Returns  a row for each: type of its key, msg, bytes of msg, state, sid, unknown_since, four scores, seats.
--          msg is false where there is none, or where the budget is spent.
--          seats: flat, four an entry that still names it (its sid is looked at too): entry, 'waiting' |
--          'pending' | 'deleted' (pending, but no longer in the stream) | 'adrift' (delivered, acknowledged,
--          and still in the stream), consumer, milliseconds since its lease was renewed
local stream, group, prefix, budget = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local after, later = ARGV[4], {}
local has_group, delivered_ms, delivered_seq = false, 0, 0

local function split(entry)
  local ms, seq = string.match(entry, '^(%d+)%-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

for _, fields in ipairs(redis.pcall('XINFO', 'GROUPS', stream)) do
  local about = {}
  for i = 1, #fields, 2 do about[fields[i]] = fields[i + 1] end
  if about['name'] == group then
    has_group, delivered_ms, delivered_seq = true, split(about['last-delivered-id'])
  end
end

local function look(seats, id, entry, is_sid)
  local ms, seq = split(entry)
  if not ms then return end
  local n, found, owner = #seats, redis.pcall('XRANGE', stream, entry, entry), nil
  if has_group then owner = redis.call('XPENDING', stream, group, entry, entry, 1)[1] end
  local named = nil
  if not found.err and found[1] then
    for f = 1, #found[1][2], 2 do
      if found[1][2][f] == 'task_id' then named = found[1][2][f + 1] end
    end
    if named ~= id then return end
  elseif not (owner and is_sid) then
    return
  end
  local kind = 'adrift'
  if owner then
    kind = named and 'pending' or 'deleted'
  elseif not has_group or ms > delivered_ms or (ms == delivered_ms and seq > delivered_seq) then
    kind = 'waiting'
  end
  seats[n + 1], seats[n + 2] = entry, kind
  seats[n + 3], seats[n + 4] = owner and owner[2] or '', owner and owner[3] or 0
end

if after ~= '' then
  for _, item in ipairs(redis.call('XRANGE', stream, '(' .. after, '+')) do
    for f = 1, #item[2], 2 do
      if item[2][f] == 'task_id' then
        local id = item[2][f + 1]
        later[id] = later[id] or {}
        table.insert(later[id], item[1])
      end
    end
  end
end

local rows, i = {}, 5
while i <= #ARGV do
  local id, n = ARGV[i], tonumber(ARGV[i + 1])
  local key, row, seats, seen = prefix .. id, {}, {}, {}
  row[1] = redis.call('TYPE', key)['ok']
  local task = redis.pcall('HMGET', key, 'state', 'sid', 'unknown_since')
  local size = redis.pcall('HSTRLEN', key, 'msg')
  if task.err then task, size = { false, false, false }, 0 end
  budget = budget - size
  row[2], row[3] = size > 0 and budget >= 0 and redis.call('HGET', key, 'msg'), size
  row[4], row[5], row[6] = task[1], task[2], task[3]
  for k = 2, 5 do
    local score = redis.pcall('ZSCORE', KEYS[k], id)
    row[5 + k] = type(score) == 'string' and score
  end
  local entries = later[id] or {}
  for e = i + 2, i + 1 + n do entries[#entries + 1] = ARGV[e] end
  if task[2] then entries[#entries + 1] = task[2] end
  for _, entry in ipairs(entries) do
    if not seen[entry] then look(seats, id, entry, entry == task[2]) end
    seen[entry] = true
  end
  row[11] = seats
  rows[#rows + 1] = row
  i = i + 2 + n
end
return rows
