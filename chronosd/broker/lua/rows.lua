-- Part of other scripts. The rows that pending.lua describes, for the given entries.
local function rows(stream, prefix, entries, budget)
  local out, n = {}, 0
  for _, entry in ipairs(entries) do
    local id, task = false, { false, false, false, false, false, false, false, false, false }
    local found = redis.call('XRANGE', stream, entry, entry)[1]
    if found then
      id = ''
      for f = 1, #found[2], 2 do
        if found[2][f] == 'task_id' then id = found[2][f + 1] end
      end
      if id == '' then task[1] = string.sub(table.concat(found[2], ' '), 1, 65536) end
    end
    if id and id ~= '' then
      local read = redis.pcall(
        'HMGET', prefix .. id, 'msg', 'state', 'sid', 'run', 'crashes', 'evidence', 'returned', 'cancel',
        'traceparent'
      )
      if not read.err then task = read end
    end
    if task[1] then
      budget = budget - #task[1]
      if budget < 0 and n > 0 then task[1] = 0 end
    end
    out[n + 1], out[n + 2] = entry, id
    for f = 1, 9 do out[n + 2 + f] = task[f] end
    n = n + 11
  end
  return out
end
