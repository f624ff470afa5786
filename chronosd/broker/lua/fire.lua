-- Purpose  Enqueues the task of one trigger of a schedule, or passes the trigger over, and moves the schedule's
--          high-water mark with it. A trigger that is not later than the mark is refused, so that of any number
--          of daemons that believe to be the one that fires, one does.
-- KEYS     1 last (string: the mark, unix seconds)  2 fired (string)  3 stream (stream)  4 task (hash)
--          5 trigger's own mark, which chronos-go keeps (string)  6 queues (set)
--          7 scheduled  8 retry  9 archived  10 completed (zsets)
-- ARGV     1 trigger in unix seconds  2 newest trigger that the caller knows of  3 task id  4 msg ('' = pass it
--          over)  5 queue name  6 milliseconds for which the trigger's own mark is kept
-- Returns  {now in milliseconds, mark, word}, word being 'fired' | 'passed' | 'early' (by this server's clock)
--          | 'old' (not later than the mark) | 'taken' (the task is there already: the mark was lost or moved)
local last, fired, stream, task, own, id, msg = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], ARGV[3], ARGV[4]
local trigger, known = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local now_ms = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))

local text = redis.call('GET', last)
local mark = text and tonumber(text)
if text and not (mark and math.abs(mark) < 1e15) then -- Lua takes nan and inf for numbers
  return redis.error_reply('ERR ' .. last .. ' holds no number')
end
mark = math.max(mark or known, known)
local function answer(word) return { now_ms, string.format('%d', mark), word } end

if trigger <= mark then return answer('old') end
if trigger > now then return answer('early') end
local word = 'passed'
if msg ~= '' then
  local held = redis.call('HEXISTS', task, 'msg')
  word = 'taken'
  if held == 0 and redis.call('EXISTS', own) == 0 then
    word = 'fired'
    redis.call('XADD', stream, '*', 'task_id', id)
    redis.call('DEL', task)
    for k = 7, 10 do redis.pcall('ZREM', KEYS[k], id) end
    redis.call('HSET', task, 'msg', msg, 'state', '1', 'enqueued_at', now_ms, 'nonce', '')
    redis.call('SET', own, '1', 'PX', ARGV[6])
    redis.pcall('SADD', KEYS[6], ARGV[5])
  end
  redis.call('SET', fired, string.format('%d', trigger))
end
mark = trigger
redis.call('SET', last, string.format('%d', mark))
return answer(word)
