-- Purpose  Makes a queue's stream and its consumer group, at id 0, unless they are there.
-- KEYS     1 stream (stream)
-- ARGV     1 group
-- Returns  'created' | 'exists'
-- Note     A server at its memory limit takes no XGROUP CREATE as a script's first write, not even to say that
--          the group is there, but any after this XACK of nothing: a daemon that starts then makes room.
redis.call('XACK', KEYS[1], ARGV[1], '0-0')
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if made.err then
  if string.find(made.err, 'BUSYGROUP', 1, true) then return 'exists' end
  return made
end
return 'created'
