-- Part of other scripts. Does what follows the end of a task: ARGV[i] is the number of its follow-ups, which
-- come after it, each one of
--   'task', place, msg
--          another task, unless its id is in use: a repeat changes nothing
--   'member', set, results, slot, index, size, result ('' = none), place, head, tail
--          a group's member has ended well. The last one enqueues the group's callback, whose message is head,
--          the results in the order of the members, if there are any, and tail
-- where place is: stream, scheduled, task key prefix, id, delay in milliseconds, set of queue names, queue name.
-- Keys come as arguments because their number varies; on a cluster they are of the script's own slot.
-- Returns the index behind the last one. With `go` false nothing is done.
local GROUP_TTL = 604800

local function enqueue_next(p, msg, now)
  local stream, scheduled, key, id = ARGV[p], ARGV[p + 1], ARGV[p + 2] .. ARGV[p + 3], ARGV[p + 3]
  local delay = tonumber(ARGV[p + 4])
  if redis.pcall('HEXISTS', key, 'msg') ~= 0 then return end
  redis.pcall('SADD', ARGV[p + 5], ARGV[p + 6])
  redis.pcall('DEL', key)
  local state, placed = '1', nil
  if delay > 0 then
    state, placed = '6', redis.pcall('ZADD', scheduled, string.format('%.6f', now + delay / 1000), id)
  else
    placed = redis.pcall('XADD', stream, '*', 'task_id', id)
  end
  if type(placed) == 'table' and placed.err then return end
  redis.call('HSET', key, 'msg', msg, 'state', state, 'enqueued_at', string.format('%d', now * 1000), 'nonce', '')
end

local function report_member(m, now)
  local set, results, slot, index, result = ARGV[m], ARGV[m + 1], ARGV[m + 2], ARGV[m + 3], ARGV[m + 5]
  local size = tonumber(ARGV[m + 4])
  if redis.pcall('SREM', set, slot) ~= 1 then return end -- reported before, or the group has ended
  if result ~= '' then
    redis.call('HSET', results, index, result)
    redis.call('EXPIRE', results, GROUP_TTL)
  end
  if redis.call('SCARD', set) > 0 then
    redis.call('EXPIRE', set, GROUP_TTL)
    return
  end
  local msg = ARGV[m + 13]
  if size > 0 and redis.call('EXISTS', results) == 1 then
    local parts = {}
    for k = 0, size - 1 do
      local one = redis.call('HGET', results, k)
      parts[k + 1] = one and '"' .. one .. '"' or 'null'
    end
    msg = msg .. '"group_results":[' .. table.concat(parts, ',') .. '],'
  end
  redis.call('DEL', results)
  enqueue_next(m + 6, msg .. ARGV[m + 14], now)
end

local function follow(i, go, now)
  local n = tonumber(ARGV[i])
  i = i + 1
  for _ = 1, n do
    if ARGV[i] == 'task' then
      if go then enqueue_next(i + 1, ARGV[i + 8], now) end
      i = i + 9
    else
      if go then report_member(i + 1, now) end
      i = i + 16
    end
  end
  return i
end
