-- Purpose  Delivers ready tasks of one queue to a consumer, with their messages, and marks them active.
--          Entries that a blocking read has already delivered to it are taken in by the same step.
-- KEYS     1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)
-- ARGV     1 group  2 consumer  3 count (entries to read; 0 = none)  4 task key prefix
--          5 budget (message bytes that one reply may carry)
--          then the ids of entries already delivered
-- Returns  {rows, gone}: rows flat, seven a task: entry, id, msg, crashes, unknown_since,
--          free_starts, trace context.
--          id is false for an entry that names no task; msg then holds its fields as text.
--          msg is false where it exceeds what is left of the budget: read it singly.
--          gone: ids whose task no longer exists, or is in another place already: pending under another
--          entry, or in the set that its state names (chronos-go puts an id in use into the stream again,
--          or into a set). Their entries are acknowledged and deleted.
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local count, prefix, budget = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local sets = { ['6'] = KEYS[2], ['4'] = KEYS[3], ['5'] = KEYS[4], ['3'] = KEYS[5] }
local rows, gone, n = {}, {}, 0
--#include trace
--#include take

take_in(6)
if count > 0 then
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', stream, '>')
  if read then
    for _, item in ipairs(read[1][2]) do take(item[1], item[2]) end
  end
end
return { rows, gone }
