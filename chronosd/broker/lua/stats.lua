-- Purpose  Counts a queue's tasks by state. Looks at no more than one entry, however long the queue is.
-- KEYS     1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)
-- ARGV     1 group
-- Returns  {ready, active, scheduled, retry, archived, completed,
--          milliseconds for which the oldest ready task has waited ('' = none is ready), consumers}
-- Note     A stream, group or set that is missing, or is something else, counts as empty.
local stream, group = KEYS[1], ARGV[1]
local time = redis.call('TIME')

local function count(command, key)
  local n = redis.pcall(command, key)
  return type(n) == 'number' and n or 0
end

local active, consumers, delivered, lag = 0, 0, '0-0', nil
local groups = redis.pcall('XINFO', 'GROUPS', stream)
for _, fields in ipairs(groups) do
  local about = {}
  for i = 1, #fields, 2 do about[fields[i]] = fields[i + 1] end
  if about['name'] == group then
    active, consumers, delivered = about['pending'], about['consumers'], about['last-delivered-id']
    lag = about['lag']
  end
end
-- Entries leave the stream when they are acknowledged, so what is not pending is ready. The server's own
-- number is better where it has one (not before 7.0, nor after waiting entries were deleted): it is not
-- misled by entries that somebody acknowledged by hand and left there.
local ready = type(lag) == 'number' and lag or math.max(count('XLEN', stream) - active, 0)
local waited = ''
local first = redis.pcall('XRANGE', stream, '(' .. delivered, '+', 'COUNT', 1)
if first[1] then
  local since = tonumber(string.match(first[1][1], '^%d+'))
  waited = string.format('%d', math.max(time[1] * 1000 + math.floor(time[2] / 1000) - since, 0))
end
return {
  ready, active, count('ZCARD', KEYS[2]), count('ZCARD', KEYS[3]), count('ZCARD', KEYS[4]),
  count('ZCARD', KEYS[5]), waited, consumers,
}
