-- Purpose  Renews the leases of entries, each only while it is still pending for its consumer.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 consumer, then the entries
-- Returns  the entries that are not its own any more
-- Note     An entry that was deleted while its task runs is left alone: XCLAIM would take it from the pending
--          list, and the run could not end its task.
--          JUSTID leaves the delivery count alone: a long task is not a redelivered one.
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local lost = {}

for i = 3, #ARGV do
  local pending = redis.call('XPENDING', stream, group, ARGV[i], ARGV[i], 1)[1]
  if not pending or pending[2] ~= consumer then
    lost[#lost + 1] = ARGV[i]
  elseif #redis.call('XRANGE', stream, ARGV[i], ARGV[i]) > 0 then
    redis.call('XCLAIM', stream, group, consumer, 0, ARGV[i], 'JUSTID')
  end
end
return lost
