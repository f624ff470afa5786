-- Part of other scripts. Writes n field/value pairs from ARGV, beginning at `first`; '' deletes the field.
local function write(key, first, n)
  for f = first, first + 2 * n - 1, 2 do
    if ARGV[f + 1] == '' then
      redis.call('HDEL', key, ARGV[f])
    else
      redis.call('HSET', key, ARGV[f], ARGV[f + 1])
    end
  end
end
