-- Part of other scripts. Puts a task that has no place any more into its stream; where that takes nothing (somebody
-- has given an entry the last id that there is), among those to be retried, so that it has one.
local function ready(stream, id, prefix, now)
  if type(redis.pcall('XADD', stream, '*', 'task_id', id)) == 'string' then return end
  redis.pcall('HSET', prefix .. id, 'state', '4')
  redis.pcall('ZADD', string.sub(prefix, 1, -3) .. 'retry', string.format('%.6f', now + 1), id)
end
