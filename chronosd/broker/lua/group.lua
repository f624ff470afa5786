-- Purpose  Makes a queue's stream and its consumer group, at id 0, unless they are there.
-- KEYS     1 stream (stream)
-- ARGV     1 group
-- Returns  'created' | 'exists'
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if made.err then
  if string.find(made.err, 'BUSYGROUP', 1, true) then return 'exists' end
  return made
end
return 'created'
