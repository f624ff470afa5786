-- Purpose  Ends tasks that leave nothing behind: success without retention, or an explicit discard.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 task key prefix  3 '1' if fetch delivered them (see owns.lua), else ''
--          then per task: entry, id, unique lock key ('' = none)
-- Returns  the entries that were no longer pending (lost): nothing was changed for those
-- Note     The hash is deleted only if this run owns it: chronos-go overwrites an id in use.
--#include owns
local stream, group, prefix, taken = KEYS[1], ARGV[1], ARGV[2], ARGV[3] == '1'
local acked, ended, lost = {}, {}, {}

for i = 4, #ARGV, 3 do
  local entry, id, lock = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if redis.call('XACK', stream, group, entry) == 0 then
    lost[#lost + 1] = entry
  else
    acked[#acked + 1] = entry
    local key, mine, gone = prefix .. id, false, false
    local task = taken and redis.pcall('HMGET', key, 'sid', 'state') -- without the message, which may be long
    if task and task[1] == entry then
      mine = task[2] == '2'
    else
      mine, gone = owns(stream, group, key, entry, taken)
    end
    if mine then ended[#ended + 1] = key end
    if lock ~= '' and (mine or gone) and redis.pcall('GET', lock) == id then redis.pcall('DEL', lock) end
  end
end
for i = 1, #acked, 1000 do redis.call('XDEL', stream, unpack(acked, i, math.min(i + 999, #acked))) end
for i = 1, #ended, 1000 do redis.call('DEL', unpack(ended, i, math.min(i + 999, #ended))) end
return lost
