-- Purpose  Stores new tasks of one queue and makes each ready, or due later. An id in use is refused.
-- KEYS     1 stream (stream)  2 scheduled  3 retry  4 archived  5 completed (zsets)
-- ARGV     1 task key prefix
--          then per task: id, nonce ('' = the id itself is unique to this call), msg,
--          mode: 'now' | 'in' | 'at', and after a space its trace context if it has one (see trace.lua),
--          ms: delay or unix instant in milliseconds (0 with 'now')
-- Returns  per task: 'pending' | 'scheduled' | 'repeat' (this very call was stored before) | 'conflict'
--#include trace
--#include store
local argv, prefix = ARGV, ARGV[1] -- locals: a global is looked up each time
local out, n = {}, 0

for i = 2, #argv, 5 do
  local id, nonce = argv[i], argv[i + 1]
  local key = prefix .. id
  local held, word = known(key, nonce)
  n = n + 1
  out[n] = word or place(key, held, id, nonce, argv[i + 2], argv[i + 3], argv[i + 4])
end
return out
