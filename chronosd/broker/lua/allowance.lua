-- Part of other scripts. How many tasks of a queue may start now, by what the whole cluster has started.
-- In flight is what is pending in the group, whoever holds it. The rate is kept by the generic cell rate
-- algorithm (ITU-T I.371): `rate` holds when the next start is due if all starts are evenly spaced (tat, unix
-- microseconds). A start may come up to `burst` before it is due, so that who asks late loses nothing.
-- most: in flight at once (0 = any number); interval: microseconds between two starts (0 = any rate)
-- Returns  how many (may be infinite), the id last delivered to the group (false: no such group), tat, now
local function allowance(stream, group, rate, most, interval, burst)
  local free, last = math.huge, false
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, info in ipairs(groups) do
    local found = {}
    for i = 1, #info, 2 do found[info[i]] = info[i + 1] end
    if found['name'] == group then
      last = found['last-delivered-id']
      if most > 0 then free = math.max(most - found['pending'], 0) end
    end
  end
  if interval <= 0 then return free, last, 0, 0 end
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local kept = redis.pcall('GET', rate)
  local tat = type(kept) == 'string' and tonumber(kept)
  if not (tat and tat > now) then tat = now end -- also where it is no number, or Lua's nan
  -- Later than a start now would make it: the clock has been set back, or the rate been raised.
  if tat > now + burst + interval then tat = now + burst end
  if tat > now + burst then return 0, last, tat, now end
  return math.min(free, math.floor((now + burst - tat) / interval) + 1), last, tat, now
end
