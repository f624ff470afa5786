-- Purpose  Renews the leases of entries, each only while it is still pending for its consumer, and the unique
--          locks that their tasks hold.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 consumer  3 task key prefix
--          4 milliseconds that a held lock shall still live (0 = leave locks alone), then the entries
-- Returns  the entries that are not its own any more
-- Note     An entry that was deleted while its task runs is left alone: XCLAIM would take it from the pending
--          list, and the run could not end its task.
--          JUSTID leaves the delivery count alone: a long task is not a redelivered one.
--          A lock that had expired while its task waited is taken again, unless another task has it.
--#include unique
local stream, group, consumer, prefix, lock_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local lost = {}

local function lengthen(fields)
  local id = fields[1] == 'task_id' and fields[2]
  local lock = id and lock_of(redis.pcall('HGET', prefix .. id, 'msg'), prefix)
  if lock then hold(lock, id, lock_ms, prefix) end
end

for i = 5, #ARGV do
  local entry = ARGV[i]
  local pending = redis.call('XPENDING', stream, group, entry, entry, 1)[1]
  if not pending or pending[2] ~= consumer then
    lost[#lost + 1] = entry
  else
    local found = redis.call('XRANGE', stream, entry, entry)[1]
    if found then
      redis.call('XCLAIM', stream, group, consumer, 0, entry, 'JUSTID')
      if lock_ms > 0 then lengthen(found[2]) end
    end
  end
end
return lost
