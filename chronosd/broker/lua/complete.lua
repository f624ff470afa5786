-- Purpose  Ends tasks that leave nothing behind: success without retention, or an explicit discard.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 task key prefix, then per task: entry, id, unique lock key ('' = none)
-- Returns  the entries that were no longer pending (lost): nothing was changed for those
-- Note     The hash is deleted only if this run owns it (sid) and nobody has enqueued the id anew
--          (state pending): chronos-go overwrites an id in use.
local stream, group, prefix = KEYS[1], ARGV[1], ARGV[2]
local acked, ended, lost = {}, {}, {}

for i = 3, #ARGV, 3 do
  local entry, id, lock = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if redis.call('XACK', stream, group, entry) == 0 then
    lost[#lost + 1] = entry
  else
    acked[#acked + 1] = entry
    local key = prefix .. id
    local task = redis.pcall('HMGET', key, 'sid', 'state')
    if task[1] == entry and task[2] ~= '1' then ended[#ended + 1] = key end
    if lock ~= '' and redis.pcall('GET', lock) == id then redis.pcall('DEL', lock) end
  end
end
if #acked > 0 then redis.call('XDEL', stream, unpack(acked)) end
if #ended > 0 then redis.call('DEL', unpack(ended)) end
return lost
