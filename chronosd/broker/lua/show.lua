-- Purpose  Tells all that is stored of one task, and where it is.
-- KEYS     1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)  6 the task's hash
-- ARGV     1 group  2 id
-- Returns  {fields of the hash, flat; scores in the four sets, false where it is in none;
--          {entry, consumer, milliseconds since its lease was renewed, deliveries} or {} if it is not known
--          to be pending (an entry that a chronos-go server owns is not noted in the hash)}
local stream, key, group, id = KEYS[1], KEYS[6], ARGV[1], ARGV[2]
local fields, scores, owner = redis.pcall('HGETALL', key), {}, {}

if fields.err then fields = {} end
for k = 2, 5 do
  local score = redis.pcall('ZSCORE', KEYS[k], id)
  scores[k - 1] = type(score) == 'string' and score
end
local sid = redis.pcall('HGET', key, 'sid')
if type(sid) == 'string' and string.find(sid, '^%d+%-%d+$') then
  local pending = redis.pcall('XPENDING', stream, group, sid, sid, 1)
  if not pending.err and pending[1] then owner = pending[1] end
end
return { fields, scores, owner }
