-- Purpose  Renews the leases of entries, each only while it is still pending for its consumer, and the unique
--          locks that their tasks hold.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 consumer  3 task key prefix  4 unique lock key prefix
--          5 milliseconds that a held lock shall still live (0 = leave locks alone), then the entries
-- Returns  the entries that are not its own any more
-- Note     An entry that was deleted while its task runs is left alone: XCLAIM would take it from the pending
--          list, and the run could not end its task.
--          JUSTID leaves the delivery count alone: a long task is not a redelivered one.
--          A lock is only ever lengthened, and only for its owner. The key is read off the message as text:
--          no script parses one.
local stream, group, consumer, prefix, locks = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lock_ms = tonumber(ARGV[5])
local lost = {}

local function lengthen(fields)
  local id = fields[1] == 'task_id' and fields[2]
  local msg = id and redis.pcall('HGET', prefix .. id, 'msg')
  local lock = type(msg) == 'string' and string.match(msg, '"unique_key":"([^"]+)"')
  if not lock then return end
  lock = string.gsub(lock, '\\u00(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
  if string.sub(lock, 1, #locks) ~= locks or redis.pcall('GET', lock) ~= id then return end
  local left = redis.call('PTTL', lock)
  if left >= 0 and left < lock_ms then redis.call('PEXPIRE', lock, lock_ms) end
end

for i = 6, #ARGV do
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
