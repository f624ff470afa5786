-- Purpose  Lists a page of the tasks of one sorted set, lowest score first.
-- KEYS     1 scheduled, retry, archived or completed (zset)
-- ARGV     1 how many to pass over  2 the most to list  3 task key prefix
--          4 budget (message bytes that the reply may carry)
-- Returns  a row for each: id, score, then what facts.lua appends
--#include facts
local set, offset, limit, prefix, budget = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local members = redis.call('ZRANGE', set, offset, offset + limit - 1, 'WITHSCORES')
local rows = {}

for i = 1, #members, 2 do
  local row = { members[i], members[i + 1] }
  budget = facts(row, prefix .. members[i], budget)
  rows[#rows + 1] = row
end
return rows
