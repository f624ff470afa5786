-- Purpose  Lists a page of the tasks that are delivered and not acknowledged, oldest entry first.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 entry after which the page begins ('' = from the oldest)  3 the most to list
--          4 task key prefix  5 budget (message bytes that the reply may carry)
-- Returns  a row for each: entry, consumer, milliseconds since its lease was renewed, deliveries,
--          id (false where the entry is gone, '' where it names no task; error then holds its fields),
--          then what facts.lua appends
--#include facts
local stream, group, after, limit, prefix, budget = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local rows = {}
local pending = redis.pcall('XPENDING', stream, group, after == '' and '-' or '(' .. after, '+', limit)

if pending.err then
  if string.find(pending.err, 'NOGROUP', 1, true) then return rows end
  return pending
end
for _, item in ipairs(pending) do
  local row = { item[1], item[2], item[3], item[4] }
  local found = redis.call('XRANGE', stream, item[1], item[1])[1]
  local id = false
  if found then
    id = ''
    for f = 1, #found[2], 2 do
      if found[2][f] == 'task_id' then id = found[2][f + 1] end
    end
  end
  row[5] = id
  if id and id ~= '' then
    budget = facts(row, prefix .. id, budget)
  else
    for f = 6, 12 do row[f] = false end
    row[7] = 0
    if found then row[11] = string.sub(table.concat(found[2], ' '), 1, 1000) end
  end
  rows[#rows + 1] = row
end
return rows
