-- Purpose  Lets go of schedules: gives the lease back, and forgets them if nobody else looks after them.
-- KEYS     1 schedules (hash: id -> JSON)
-- ARGV     1 owner, then per schedule: id, key of last, of fired, of lease (strings), '1' to forget it
-- Returns  how many were forgotten
-- Note     Another daemon that has a forgotten schedule still knows its last trigger, and puts that back.
local shown, owner = KEYS[1], ARGV[1]
local forgotten = 0

for i = 2, #ARGV, 5 do
  local id, last, fired, lease, forget = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4] == '1'
  local holder = redis.pcall('GET', lease)
  if holder == owner then
    redis.call('DEL', lease)
    holder = false
  end
  if forget and not holder then
    redis.call('DEL', last, fired)
    redis.pcall('HDEL', shown, id)
    forgotten = forgotten + 1
  end
end
return forgotten
