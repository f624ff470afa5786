-- Purpose  Enqueues a group, all of it at once: the set of its members and every member in its place.
-- KEYS     1 members (set)  2 messages put down by stage_group.lua (hash)  3 the callback's task (hash)
--          4 queue names (set)
-- ARGV     1 seconds for which it waits for a success  2 n
--          then per queue, n times: name, stream, scheduled, task key prefix
--          then per member: slot, number of its queue (from 1), id, mode: 'now' | 'in' | 'at' (and trace context,
--          as in enqueue.lua), ms: delay or unix instant in milliseconds, message ('' = it was put down)
-- Returns  'opened' | 'repeat' (the group is there, or has ended) | 'expired' (messages that were put down are
--          gone; nothing was changed)
-- Note     The members' queues are named in arguments; on a cluster they are of the script's own slot.
--#include trace
local set, bodies, callback, names = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local n = tonumber(ARGV[2])
local first = 3 + 4 * n
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local now_ms = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))

if redis.call('SCARD', set) > 0 or redis.call('HEXISTS', callback, 'msg') == 1 then return 'repeat' end
for i = 3, first - 1, 4 do -- these raise, before anything is written, if a key is of another type
  redis.call('XLEN', ARGV[i + 1])
  redis.call('ZCARD', ARGV[i + 2])
end
local staged, slots = 0, {}
for i = first, #ARGV, 6 do
  slots[#slots + 1] = ARGV[i]
  if ARGV[i + 5] == '' then staged = staged + 1 end
end
if staged > 0 and redis.call('HLEN', bodies) ~= staged then return 'expired' end

for i = 3, first - 1, 4 do redis.pcall('SADD', names, ARGV[i]) end
for i = 1, #slots, 1000 do redis.call('SADD', set, unpack(slots, i, math.min(i + 999, #slots))) end
redis.call('EXPIRE', set, ARGV[1])
for i = first, #ARGV, 6 do
  local q, id, mode, ms, msg = 3 + 4 * (ARGV[i + 1] - 1), ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]), ARGV[i + 5]
  local key = ARGV[q + 3] .. id
  if msg == '' then msg = redis.call('HGET', bodies, (i - first) / 6) end
  local trace = nil
  mode, trace = mode_and_trace(mode)
  local due = mode == 'in' and now + ms / 1000 or ms / 1000
  local state = '6'
  if mode == 'now' or due <= now then
    state = '1'
    redis.call('XADD', ARGV[q + 1], '*', 'task_id', id)
  else
    redis.call('ZADD', ARGV[q + 2], string.format('%.6f', due), id)
  end
  redis.call('HSET', key, 'msg', msg, 'state', state, 'enqueued_at', now_ms, 'nonce', '')
  if trace then leave_trace(key, trace) end
end
redis.call('UNLINK', bodies)
return 'opened'
