-- Purpose  Reads what is pending for a consumer, with all that a settlement has to know of each task.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 consumer  3 first entry to look at ('-' = the oldest)  4 the most to read
--          5 budget (message bytes that one reply may carry)  6 task key prefix
-- Returns  rows flat, eleven an entry: entry, id, msg, state, sid, run, crashes, evidence, returned, cancel,
--          traceparent.
--          id is false where the entry is gone, '' where it names no task (msg then holds its fields as text);
--          msg is false where there is none, 0 where the budget is spent: read it singly.
--#include rows
local stream, group, consumer, first = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local entries = {}

-- What is no stream has nothing pending: whoever put it there has deleted what was.
local kind = redis.call('TYPE', stream)['ok']
if kind ~= 'stream' and kind ~= 'none' then return {} end
for _, item in ipairs(redis.call('XPENDING', stream, group, first, '+', ARGV[4], consumer)) do
  entries[#entries + 1] = item[1]
end
return rows(stream, ARGV[6], entries, tonumber(ARGV[5]))
