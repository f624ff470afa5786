-- Part of other scripts. Appends to a row what is stored of a task, seven values:
-- msg, bytes of msg, state, crashes, enqueued_at, error, unknown_since.
-- msg is false where there is none, or where the budget is spent (its length is told all the same).
-- Returns the budget that is left.
local function facts(row, key, budget)
  local n, task = #row, redis.pcall('HMGET', key, 'msg', 'state', 'crashes', 'enqueued_at', 'error', 'unknown_since')
  if task.err then task = { false, false, false, false, false, false } end
  local msg, size = task[1], 0
  if msg then
    size = #msg
    budget = budget - size
    if budget < 0 then msg = false end
  end
  row[n + 1], row[n + 2] = msg, size
  for f = 2, 6 do row[n + f + 1] = task[f] end
  return budget
end
