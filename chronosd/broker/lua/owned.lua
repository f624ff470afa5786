-- Purpose  Tells which entries are no longer pending for a consumer.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 consumer, then the entries
-- Returns  the entries that are not its own any more
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local lost = {}

for i = 3, #ARGV do
  local pending = redis.call('XPENDING', stream, group, ARGV[i], ARGV[i], 1)[1]
  if not pending or pending[2] ~= consumer then lost[#lost + 1] = ARGV[i] end
end
return lost
