-- Part of other scripts, which include trace.lua before it. Does what follows the end of a task: ARGV[i] is the
-- number of its follow-ups, which come after it, each one of
--   'task', place, msg
--          another task, unless its id is in use: a repeat changes nothing
--   'member', set, results, slot, index, size, result ('' = none), place, head, tail
--          a group's member has ended well. The last one enqueues the group's callback, whose message is head,
--          the results in the order of the members, if there are any, and tail
--   'group', set, results, n, place, head, tail, then n times: place, msg
--          a group begins: every member that is not there yet, and is not known to have ended. What was begun
--          and not completed is completed by a repeat
--   'hold', set, results, seconds
--          a group's member needs more time: the group waits that long, if it does not anyway
--   'end', set, results, slot, size, archived, place, head, tail, n, then n follow-ups
--          a group's member is gone for good. Its callback is dead-lettered, with the results so far; what
--          follows that, if this was it
-- where place is: stream, scheduled, task key prefix, id, delay in milliseconds, set of queue names, queue
-- name, and the place of 'member', 'group' and 'end' is the callback's.
-- Keys come as arguments because their number varies; on a cluster they are of the script's own slot.
-- Returns the index behind the last one, and what went wrong, if anything did: what follows it is not done, and
-- the same again, later, does the rest. `go`: true, false (nothing is done), or 'reports' (only 'member').
local GROUP_TTL = 604800
local MANY = 1000 -- the most words for one command
local carried = nil -- the trace context of the task that ended, for what follows it
local LENGTHS = { task = 9, member = 16, hold = 4 }

local function wrong(reply, key)
  if type(reply) == 'table' and reply.err then return reply.err .. ' (' .. key .. ')' end
  return nil
end

local function live_on(key, ttl)
  local left = redis.pcall('TTL', key)
  if type(left) == 'number' and left < ttl then redis.pcall('EXPIRE', key, ttl) end
end

-- Stores a task in `state` with its place, both or neither. Returns what went wrong, and whether it was there.
local function store(p, msg, state, now, archived)
  local id, key = ARGV[p + 3], ARGV[p + 2] .. ARGV[p + 3]
  local held = redis.pcall('HEXISTS', key, 'msg')
  if held ~= 0 then return wrong(held, key), held == 1 end
  redis.pcall('SADD', ARGV[p + 5], ARGV[p + 6])
  redis.pcall('DEL', key)
  local at = string.format('%d', now * 1000)
  local problem = wrong(redis.pcall('HSET', key, 'msg', msg, 'state', state, 'enqueued_at', at, 'nonce', ''), key)
  if problem then return problem, false end
  if state == '1' then
    problem = wrong(redis.pcall('XADD', ARGV[p], '*', 'task_id', id), ARGV[p])
  elseif state == '5' then
    problem = wrong(redis.pcall('ZADD', archived, string.format('%.6f', now), id), archived)
  else
    local due = string.format('%.6f', now + tonumber(ARGV[p + 4]) / 1000)
    problem = wrong(redis.pcall('ZADD', ARGV[p + 1], due, id), ARGV[p + 1])
  end
  if problem then
    redis.pcall('DEL', key)
  elseif carried then
    leave_trace(key, carried)
  end
  return problem, false
end

local function enqueue_next(p, msg, now)
  return store(p, msg, tonumber(ARGV[p + 4]) > 0 and '6' or '1', now)
end

-- Returns the callback's message, or nil and what went wrong.
local function with_results(results, size, head, tail)
  if size <= 0 or redis.pcall('EXISTS', results) ~= 1 then return head .. tail end
  local parts = {}
  for first = 0, size - 1, MANY do
    local indexes = {}
    for k = first, math.min(first + MANY, size) - 1 do indexes[#indexes + 1] = k end
    local found = redis.pcall('HMGET', results, unpack(indexes))
    if found.err then return nil, wrong(found, results) end
    for _, one in ipairs(found) do
      parts[#parts + 1] = one and '"' .. one .. '"' or 'null'
    end
  end
  return head .. '"group_results":[' .. table.concat(parts, ',') .. '],' .. tail
end

local function report(set, results, slot, index, size, result, p, head, tail, now)
  local open = redis.pcall('SISMEMBER', set, slot)
  if open == 0 then return nil end -- reported before, or the group has ended
  local problem = wrong(open, set)
  if problem then return problem end
  redis.pcall('SADD', ARGV[p + 5], ARGV[p + 6])
  if result ~= '' then
    problem = wrong(redis.pcall('HSET', results, index, result), results)
    if problem then return problem end
  end
  if redis.call('SCARD', set) > 1 then
    redis.call('SREM', set, slot)
    live_on(set, GROUP_TTL)
    live_on(results, GROUP_TTL)
    return nil
  end
  local msg
  msg, problem = with_results(results, size, head, tail)
  problem = problem or enqueue_next(p, msg, now)
  if not problem then redis.call('DEL', set, results) end
  return problem
end

local function begin_group(g, n, now)
  local set, results, p, head, tail = ARGV[g], ARGV[g + 1], g + 3, ARGV[g + 10], ARGV[g + 11]
  local callback = ARGV[p + 2] .. ARGV[p + 3]
  local ended = redis.pcall('HEXISTS', callback, 'msg')
  if ended ~= 0 then return wrong(ended, callback) end
  local left = redis.pcall('SCARD', set)
  local problem = wrong(left, set)
  if problem then return problem end
  if left == 0 then
    redis.pcall('DEL', results)
    for first = 0, n - 1, MANY do
      local slots = {}
      for k = first, math.min(first + MANY, n) - 1 do slots[#slots + 1] = ARGV[g + 12 + 8 * k + 3] end
      redis.call('SADD', set, unpack(slots))
    end
  end
  local longest = 0
  for k = 0, n - 1 do longest = math.max(longest, tonumber(ARGV[g + 12 + 8 * k + 4])) end
  live_on(set, GROUP_TTL + math.ceil(longest / 1000))
  local succeeded = {}
  for k = 0, n - 1 do
    local m = g + 12 + 8 * k
    if redis.call('SISMEMBER', set, ARGV[m + 3]) == 1 then
      local known
      problem, known = enqueue_next(m, ARGV[m + 7], now)
      if problem then return problem end
      if known then succeeded[#succeeded + 1] = k end
    end
  end
  for _, k in ipairs(succeeded) do -- kept from an earlier beginning: they report again
    local m = g + 12 + 8 * k
    local task = redis.call('HMGET', ARGV[m + 2] .. ARGV[m + 3], 'state', 'msg')
    if task[1] == '3' then
      local result = string.match(task[2], ',"result":"([%w+/=]*)"') or ''
      problem = report(set, results, ARGV[m + 3], k, n, result, p, head, tail, now)
      if problem then return problem end
    end
  end
  return nil
end

-- Returns what went wrong, and whether this ended the group.
local function end_group(e, now)
  local set, results, slot, size, archived = ARGV[e], ARGV[e + 1], ARGV[e + 2], tonumber(ARGV[e + 3]), ARGV[e + 4]
  local open = redis.pcall('SISMEMBER', set, slot)
  if open ~= 1 then return wrong(open, set), false end
  local msg, problem = with_results(results, size, ARGV[e + 12], ARGV[e + 13])
  problem = problem or store(e + 5, msg, '5', now, archived)
  if problem then return problem, false end
  redis.call('DEL', set, results)
  return nil, true
end

local function follow(i, go, now)
  local problem = nil
  local function one(j, act)
    local what, n = ARGV[j], LENGTHS[ARGV[j]]
    if what == 'task' then
      if act == true then problem = enqueue_next(j + 1, ARGV[j + 8], now) end
    elseif what == 'member' then
      if act then
        local size = tonumber(ARGV[j + 5])
        problem = report(ARGV[j + 1], ARGV[j + 2], ARGV[j + 3], ARGV[j + 4], size, ARGV[j + 6], j + 7, ARGV[j + 14],
          ARGV[j + 15], now)
      end
    elseif what == 'group' then
      n = 13 + 8 * tonumber(ARGV[j + 3])
      if act == true then problem = begin_group(j + 1, tonumber(ARGV[j + 3]), now) end
    elseif what == 'hold' then
      if act == true then
        live_on(ARGV[j + 1], tonumber(ARGV[j + 3]))
        live_on(ARGV[j + 2], tonumber(ARGV[j + 3]))
      end
    else -- 'end'
      local ended = false
      if act == true then problem, ended = end_group(j + 1, now) end
      local k = j + 16
      for _ = 1, tonumber(ARGV[j + 15]) do k = one(k, ended and not problem) end
      return k
    end
    return j + n
  end
  local k = i + 1
  for _ = 1, tonumber(ARGV[i]) do k = one(k, go and not problem and go) end
  return k, problem
end
