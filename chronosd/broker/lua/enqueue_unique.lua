-- Purpose  Stores new tasks of one queue as enqueue.lua does, each only if no other task holds its unique lock.
-- KEYS     1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)
-- ARGV     1 task key prefix
--          then per task: what enqueue.lua takes, the key of its unique lock, milliseconds that the lock lives
--          once the task is due
-- Returns  per task three: enqueue.lua's word, or 'duplicate'; and then the id and the state of the holder
--          ('' = what is under the key is no lock)
-- Note     A resend finds its own task, and so its own lock: 'repeat', as if there were none.
--#include unique
--#include trace
--#include store
local prefix = ARGV[1]
local out = {}

for i = 2, #ARGV, 7 do
  local id, nonce = ARGV[i], ARGV[i + 1]
  local lock, ttl = ARGV[i + 5], tonumber(ARGV[i + 6])
  local key, n = prefix .. id, #out
  local held, word = known(key, nonce)
  local holder, state = nil, nil
  if word ~= 'repeat' then
    holder, state = holder_of(lock, id, prefix)
    if holder then word = 'duplicate' end
  end
  if not word then
    local wait = nil
    word, wait = place(key, held, id, nonce, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
    redis.call('HSET', key, 'unique_ttl', ttl)
    redis.call('SET', lock, id, 'PX', ttl + math.ceil(wait * 1000))
  end
  out[n + 1], out[n + 2], out[n + 3] = word, holder or '', state or ''
end
return out
