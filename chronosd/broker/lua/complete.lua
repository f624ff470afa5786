-- Purpose  Ends tasks that leave nothing behind: success without retention, or an explicit discard.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 task key prefix  3 '1' if fetch delivered them (see owns.lua), else ''
--          then per task: entry, id, unique lock key ('' = none)
-- Returns  the entries that were no longer pending (lost): nothing was changed for those
-- Note     The hash is deleted only if this run owns it: chronos-go overwrites an id in use.
--          All entries are acknowledged in one command, which says only how many of them were pending. If not
--          all were, those that are in the stream no more are the lost ones: whoever acknowledges an entry
--          deletes it in the same breath.
--#include owns
local stream, group, prefix, taken = KEYS[1], ARGV[1], ARGV[2], ARGV[3] == '1'
local entries, n, lost, ended = {}, 0, {}, {}

for i = 4, #ARGV, 3 do
  n = n + 1
  entries[n] = ARGV[i]
end
local acked = 0
for i = 1, n, 1000 do
  acked = acked + redis.call('XACK', stream, group, unpack(entries, i, math.min(i + 999, n)))
end

for i = 1, n do
  local entry, id, lock = entries[i], ARGV[i * 3 + 2], ARGV[i * 3 + 3]
  if acked < n and #redis.call('XRANGE', stream, entry, entry) == 0 then
    lost[#lost + 1] = entry
  else
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
for i = 1, n, 1000 do redis.call('XDEL', stream, unpack(entries, i, math.min(i + 999, n))) end
for i = 1, #ended, 1000 do redis.call('DEL', unpack(ended, i, math.min(i + 999, #ended))) end
return lost
