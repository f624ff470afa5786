-- Purpose  Lists a page of the tasks that wait in the stream, oldest first.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 entry after which the page begins ('' = from the oldest)  3 the most to list
--          4 task key prefix  5 budget (message bytes that the reply may carry)
-- Returns  a row for each: entry, id ('' where it names no task; error then holds its fields), then
--          what facts.lua appends
--#include facts
local stream, group, after, limit, prefix, budget = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local delivered, rows = '0-0', {}

local function before(a, b)
  local a1, a2 = string.match(a, '^(%d+)-?(%d*)$')
  local b1, b2 = string.match(b, '^(%d+)-?(%d*)$')
  a1, b1 = tonumber(a1), tonumber(b1)
  if a1 ~= b1 then return a1 < b1 end
  return (tonumber(a2) or 0) < (tonumber(b2) or 0)
end

if redis.call('EXISTS', stream) == 0 then return rows end
for _, fields in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local about = {}
  for i = 1, #fields, 2 do about[fields[i]] = fields[i + 1] end
  if about['name'] == group then delivered = about['last-delivered-id'] end
end
if after == '' or before(after, delivered) then after = delivered end
for _, item in ipairs(redis.call('XRANGE', stream, '(' .. after, '+', 'COUNT', limit)) do
  local fields, id = item[2], ''
  for f = 1, #fields, 2 do
    if fields[f] == 'task_id' then id = fields[f + 1] end
  end
  local row = { item[1], id }
  if id ~= '' then
    budget = facts(row, prefix .. id, budget)
  else
    row = { item[1], id, false, 0, false, false, false, string.sub(table.concat(fields, ' '), 1, 1000), false }
  end
  rows[#rows + 1] = row
end
return rows
