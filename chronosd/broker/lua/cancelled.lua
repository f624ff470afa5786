-- Purpose  Tells which running tasks were cancelled, and forgets those that have ended.
-- KEYS     1 stream (stream)  2 cancelled (zset, see cancel.lua)
-- ARGV     1 group  2 the most to look at
-- Returns  rows flat, four a task: entry, consumer that has it, '1' if it may be killed for it, id
local stream, marks, group, most = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local rows, n = {}, 0

for _, mark in ipairs(redis.call('ZRANGE', marks, 0, most - 1)) do
  local entry, force, id = string.match(mark, '^(%S+) (%d) (.*)$')
  local owner = entry and redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if owner and not owner.err and owner[1] then
    rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = entry, owner[1][2], force, id
    n = n + 4
  else
    redis.call('ZREM', marks, mark)
  end
end
return rows
