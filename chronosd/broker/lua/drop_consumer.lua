-- Purpose  Deletes a dead consumer, if nothing is pending for it.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 consumer
-- Returns  'deleted' | 'busy' (something is pending) | 'absent'
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]

if #redis.call('XPENDING', stream, group, '-', '+', 1, consumer) > 0 then return 'busy' end
for _, item in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  if item[2] == consumer then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
    return 'deleted'
  end
end
return 'absent'
