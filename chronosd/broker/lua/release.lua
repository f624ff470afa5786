-- Purpose  Hands back tasks that were fetched and not started: ready again at once, nothing charged.
-- KEYS     1 stream (stream)  2 archived (zset, score = died at, unix seconds)
-- ARGV     1 group  2 task key prefix  3 field to count the return in ('' = not counted)
--          then per task: entry, id
-- Returns  {the entries that were no longer pending (lost): nothing was changed for those, those whose run had
--          been cancelled: they are ended instead (see ending.lua)}
--#include owns
--#include unique
--#include ending
--#include ready
local stream, group, prefix, counter = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local now = redis.call('TIME')[1]
local lost, cancelled = {}, {}

for i = 4, #ARGV, 2 do
  local entry, id = ARGV[i], ARGV[i + 1]
  if redis.call('XACK', stream, group, entry) == 0 then
    lost[#lost + 1] = entry
  else
    redis.call('XDEL', stream, entry)
    local key = prefix .. id
    local mine = owns(stream, group, key, entry, false)
    if mine and end_if_cancelled(prefix, id, entry, KEYS[2], now) then
      cancelled[#cancelled + 1] = entry
    elseif mine then
      if counter ~= '' then redis.pcall('HINCRBY', key, counter, 1) end
      redis.call('HSET', key, 'state', '1', 'sid', '')
      ready(stream, id, prefix, now)
    end
  end
end
return { lost, cancelled }
