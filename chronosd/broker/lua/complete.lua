-- Purpose  Ends tasks that leave nothing behind: success without retention, or an explicit discard.
-- KEYS     1 stream (stream)
-- ARGV     1 group  2 task key prefix  3 '1' if fetch delivered them (see owns.lua), else ''
--          then per task: entry, id, unique lock key ('' = none)
-- Returns  the entries that were no longer pending (lost): nothing was changed for those
-- Note     The hash is deleted only if this run owns it: chronos-go overwrites an id in use.
--          Entries whose hashes say that they are this run's own, nearly all, are acknowledged in one command,
--          which tells no more than how many were pending. If not all were, the lost ones are those that are in
--          the stream no more: whoever acknowledges an entry deletes it in the same breath. Only together with
--          the hash does that suffice: a server that lost the delivery has the entry waiting, for another run.
--#include owns
local stream, group, prefix, taken = KEYS[1], ARGV[1], ARGV[2], ARGV[3] == '1'
local argv, own, keys, locked = ARGV, {}, {}, {} -- locals: a global is looked up each time
local n, lost, ended = 0, {}, {}

local function unlock(lock, id)
  if lock ~= '' and redis.pcall('GET', lock) == id then redis.pcall('DEL', lock) end
end

for i = 4, #argv, 3 do
  local entry, id, lock = argv[i], argv[i + 1], argv[i + 2]
  local key = prefix .. id
  local task = taken and redis.pcall('HMGET', key, 'sid', 'state') -- without the message, which may be long
  if task and task[1] == entry and task[2] == '2' then
    n = n + 1
    own[n], keys[n] = entry, key
    if lock ~= '' then locked[n] = i end
  elseif redis.call('XACK', stream, group, entry) == 0 then
    lost[#lost + 1] = entry
  else
    redis.call('XDEL', stream, entry)
    local mine, gone = owns(stream, group, key, entry, taken)
    if mine then redis.call('DEL', key) end
    if mine or gone then unlock(lock, id) end
  end
end

local acked = 0
for i = 1, n, 1000 do
  acked = acked + redis.call('XACK', stream, group, unpack(own, i, math.min(i + 999, n)))
end
for i = 1, n do
  if acked < n and #redis.call('XRANGE', stream, own[i], own[i]) == 0 then
    lost[#lost + 1] = own[i]
  else
    ended[#ended + 1] = keys[i]
    if locked[i] then unlock(argv[locked[i] + 2], argv[locked[i] + 1]) end
  end
end
for i = 1, n, 1000 do redis.call('XDEL', stream, unpack(own, i, math.min(i + 999, n))) end
for i = 1, #ended, 1000 do redis.call('DEL', unpack(ended, i, math.min(i + 999, #ended))) end
return lost
