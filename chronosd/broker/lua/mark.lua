-- Purpose  Notes on running tasks that their run has outlived the cycle it was fetched in.
-- KEYS     1 stream (stream; not touched, it names the slot)
-- ARGV     1 task key prefix, then per task: entry, id
-- Returns  how many were marked
local prefix, marked = ARGV[1], 0

for i = 2, #ARGV, 2 do
  local entry, key = ARGV[i], prefix .. ARGV[i + 1]
  if redis.pcall('HGET', key, 'sid') == entry then
    redis.call('HSET', key, 'run', entry)
    marked = marked + 1
  end
end
return marked
