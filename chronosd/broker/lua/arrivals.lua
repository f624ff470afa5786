-- Purpose  Takes in what a blocking read has just delivered to a consumer, in any of several queues, as fetch.lua
--          does with what is named to it. It is sent with the read, before anybody knows what that will bring:
--          of each queue it takes what is pending for the consumer and newer than all that the consumer has seen.
-- KEYS     per queue: 1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)
-- ARGV     1 group  2 consumer  3 budget (message bytes that one reply may carry)
--          then per queue: task key prefix, the newest entry seen ('' = none)
-- Returns  {unix ms, then for each queue that has something three: its place (0 = the first), and rows and gone as
--          in fetch.lua}. Of each queue one entry at most: more cannot arrive.
local group, consumer, budget = ARGV[1], ARGV[2], tonumber(ARGV[3])
local stream, prefix, sets, rows, gone, n
--#include trace
--#include take

local time = redis.call('TIME')
local out = { time[1] * 1000 + math.floor(time[2] / 1000) }
for q = 0, #KEYS / 5 - 1 do
  local k, seen = q * 5, ARGV[5 + q * 2]
  local from = seen == '' and '-' or '(' .. seen
  local pending = redis.pcall('XPENDING', KEYS[k + 1], group, from, '+', 1, consumer)
  if pending[1] then -- else there is nothing, or no group
    stream, prefix = KEYS[k + 1], ARGV[4 + q * 2]
    sets = { ['6'] = KEYS[k + 2], ['4'] = KEYS[k + 3], ['5'] = KEYS[k + 4], ['3'] = KEYS[k + 5] }
    rows, gone, n = {}, {}, 0
    take_own(pending[1][1])
    local last = #out
    out[last + 1], out[last + 2], out[last + 3] = q, rows, gone
  end
end
return out
