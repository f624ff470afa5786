-- Purpose  Tells which running tasks were cancelled, a page of them, and forgets those that have ended.
-- KEYS     1 stream (stream)  2 cancelled (zset, see cancel.lua)
-- ARGV     1 group  2 cursor: '0', or what the page before returned  3 about how many to look at
-- Returns  {cursor of the next page ('0' = this was the last one), rows flat, four a task: entry, consumer that
--          has it, '1' if it may be killed for it, id}
-- Note     A scan, which misses nothing that is there from its beginning to its end, whatever comes and goes
--          meanwhile. It may tell a task twice.
local stream, marks, group = KEYS[1], KEYS[2], ARGV[1]
local page = redis.call('ZSCAN', marks, ARGV[2], 'COUNT', ARGV[3])
local found, rows, n = page[2], {}, 0

for i = 1, #found, 2 do
  local entry, force, id = string.match(found[i], '^(%S+) (%d) (.*)$')
  local owner = entry and redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if owner and not owner.err and owner[1] then
    rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = entry, owner[1][2], force, id
    n = n + 4
  else
    redis.call('ZREM', marks, found[i])
  end
end
return { page[1], rows }
