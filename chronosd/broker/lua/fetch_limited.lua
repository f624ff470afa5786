-- Purpose  As fetch.lua, for a queue with limits: claims no more than may start, in the whole cluster.
-- KEYS     1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)
--          6 rate (string: see allowance; lives until the next start is due)
-- ARGV     1 group  2 consumer  3 count (entries to read; 0 = none)  4 task key prefix
--          5 budget (message bytes that one reply may carry)
--          6 most in flight (0 = any number)  7 microseconds between two starts (0 = any rate)
--          8 burst (microseconds)
--          then the ids of entries already delivered: they count as in flight, and as started before
-- Returns  as fetch.lua
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local count, prefix, budget = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local most, interval, burst = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local sets, rate = { ['6'] = KEYS[2], ['4'] = KEYS[3], ['5'] = KEYS[4], ['3'] = KEYS[5] }, KEYS[6]
local rows, gone, n = {}, {}, 0
--#include trace
--#include take
--#include allowance

take_in(9)
if count > 0 then
  local free, _, tat, now = allowance(stream, group, rate, most, interval, burst)
  count = math.min(count, free)
  if count >= 1 then
    local before = n
    local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', stream, '>')
    if read then
      for _, item in ipairs(read[1][2]) do take(item[1], item[2]) end
    end
    local started = (n - before) / 7
    if interval > 0 and started > 0 then
      tat = tat + started * interval
      redis.call('SET', rate, string.format('%.0f', tat), 'PX', math.ceil((tat - now) / 1000))
    end
  end
end
return { rows, gone }
