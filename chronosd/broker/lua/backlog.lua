-- Purpose  Counts the tasks of a queue that are to be run now: ready, running, or due.
-- KEYS     1 stream (stream)  2 scheduled (zset, score = due in unix seconds)  3 retry (the same)
-- Returns  their number
local stream, scheduled, retry = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = string.format('%.6f', time[1] + time[2] / 1000000)

-- Entries leave the stream with their acknowledgement, so its length counts the running ones too.
return redis.call('XLEN', stream)
  + redis.call('ZCOUNT', scheduled, '-inf', now)
  + redis.call('ZCOUNT', retry, '-inf', now)
