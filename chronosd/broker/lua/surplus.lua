-- Purpose  Counts the finished tasks of one set that trim.lua would delete.
-- KEYS     1 archived or completed (zset)
-- ARGV     1 age in milliseconds: a score this far in the past has passed ('' = no limit)
--          2 the most to keep (0 = no limit)
-- Returns  their number
local set, age, keep = KEYS[1], ARGV[1], tonumber(ARGV[2])
local aged, over = 0, 0

if age ~= '' then
  local time = redis.call('TIME')
  local past = string.format('%.6f', time[1] + time[2] / 1000000 - tonumber(age) / 1000)
  aged = redis.call('ZCOUNT', set, '-inf', past)
end
if keep > 0 then over = redis.call('ZCARD', set) - keep end
return math.max(aged, over)
