-- Purpose  Cancels one task. One that waits is taken away; one that runs is marked, so that its worker ends it
--          and nobody runs it again.
-- KEYS     1 stream (stream)  2 scheduled  3 retry (zsets)  4 the task's hash
--          5 cancelled (zset: "entry force id", score = marked at, unix seconds)
-- ARGV     1 group  2 id  3 '1' if its worker may be killed for it, else '0'  4 task key prefix
--          5 how many waiting entries to search for its own
-- Returns  'removed' | 'marked' | 'foreign' (it runs, but not on a worker of ours) | 'ended' | 'absent'
-- Note     The entry of a waiting task that is not found stays: the next fetch of it finds no task and drops
--          it. A mark names the run that it is for; a later run of the same id is another matter.
--#include unique
local stream, key, marks = KEYS[1], KEYS[4], KEYS[5]
local group, id, force, prefix, depth = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local task = redis.pcall('HMGET', key, 'msg', 'state', 'sid')
if task.err or not task[1] then return 'absent' end
local state, sid = task[2], task[3]

if state == '3' or state == '5' then return 'ended' end
if state == '2' then
  local owner = sid and sid ~= '' and redis.pcall('XPENDING', stream, group, sid, sid, 1)
  if not owner or owner.err or not owner[1] then return 'foreign' end
  local now = redis.call('TIME')[1]
  redis.call('ZREM', marks, sid .. ' ' .. (force == '1' and '0' or '1') .. ' ' .. id)
  redis.call('ZADD', marks, now, sid .. ' ' .. force .. ' ' .. id)
  redis.call('EXPIRE', marks, 604800)
  redis.call('HSET', key, 'cancel', sid)
  return 'marked'
end

local delivered = '0-0'
for _, fields in ipairs(redis.pcall('XINFO', 'GROUPS', stream)) do
  local about = {}
  for i = 1, #fields, 2 do about[fields[i]] = fields[i + 1] end
  if about['name'] == group then delivered = about['last-delivered-id'] end
end
local waiting = redis.pcall('XRANGE', stream, '(' .. delivered, '+', 'COUNT', depth)
local lock = lock_of(task[1], prefix)
if lock then unlock(lock, id) end
redis.call('DEL', key)
redis.pcall('ZREM', KEYS[2], id)
redis.pcall('ZREM', KEYS[3], id)
if not waiting.err then
  for _, item in ipairs(waiting) do
    for f = 1, #item[2], 2 do
      if item[2][f] == 'task_id' and item[2][f + 1] == id then redis.call('XDEL', stream, item[1]) end
    end
  end
end
return 'removed'
