-- Purpose  Tells how many tasks of a queue with limits wait and may start now.
-- KEYS     1 stream (stream)  2 rate (string: see allowance)
-- ARGV     1 group  2 most in flight (0 = any number)  3 microseconds between two starts (0 = any rate)
--          4 burst (microseconds)
-- Returns  their number: 0 if there is none; otherwise not exact where entries were deleted by hand
--#include allowance
local stream, rate, group = KEYS[1], KEYS[2], ARGV[1]
local most, interval, burst = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local free, last = allowance(stream, group, rate, most, interval, burst)
if free < 1 or not last then return 0 end
local next_one = redis.pcall('XRANGE', stream, '(' .. last, '+', 'COUNT', 1)
if next_one.err or #next_one == 0 then return 0 end -- an error: there is no id after that one
local waiting = redis.call('XLEN', stream) - redis.call('XPENDING', stream, group)[1]
return math.min(free, math.max(waiting, 1))
