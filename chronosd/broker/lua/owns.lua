-- Part of other scripts. Whether the run that held `entry` (just acknowledged) may write the task's hash,
-- and whether there is no task any more (its message was deleted by an operator).
-- `taken`: the run began with fetch, which wrote its entry to sid. It may write as long as sid is its own
-- and the state is active: chronos-go overwrites an id in use (state pending or scheduled), leaves sid, and
-- may by then have run, retried or kept the new task.
-- Other entries were never fetched, or by Go, which writes no sid. For those a sid left by an earlier run of
-- ours counts only while that entry is still pending.
local function owns(stream, group, key, entry, taken)
  local task = redis.pcall('HMGET', key, 'msg', 'state', 'sid')
  if task.err or not task[1] then return false, true end
  local state, sid = task[2], task[3]
  if sid == entry then return state == '2', false end
  if taken then return false, false end
  if state == '1' or not state then return true, false end
  if state ~= '2' then return false, false end
  if not sid or sid == '' then return true, false end
  local other = redis.pcall('XPENDING', stream, group, sid, sid, 1)
  return other.err ~= nil or #other == 0, false
end
