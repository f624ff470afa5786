-- Part of other scripts. Whether the run that held `entry` (just acknowledged) may write the task's hash.
-- No: its message is gone (deleted by an operator); its id was enqueued anew (chronos-go overwrites, and
-- leaves sid); another run owns it; or it has long been moved to a set. Yes also where sid is stale: Go
-- writes none, so one left by an earlier run of ours counts only while that entry is still pending.
local function owns(stream, group, key, entry)
  local task = redis.pcall('HMGET', key, 'msg', 'state', 'sid')
  if task.err or not task[1] then return false end
  local state, sid = task[2], task[3]
  if sid == entry then return state ~= '1' end
  if state == '1' or not state then return true end
  if state ~= '2' then return false end
  if not sid or sid == '' then return true end
  local other = redis.pcall('XPENDING', stream, group, sid, sid, 1)
  return other.err ~= nil or #other == 0
end
