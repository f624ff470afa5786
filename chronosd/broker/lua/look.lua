-- Purpose  Reads entries that a recoverer has just claimed, with all that it has to know of each task.
-- KEYS     1 stream (stream)
-- ARGV     1 task key prefix  2 budget (message bytes that one reply may carry), then the entries
-- Returns  rows as pending.lua returns them
--#include rows
local entries = {}
for i = 3, #ARGV do entries[#entries + 1] = ARGV[i] end
return rows(KEYS[1], ARGV[1], entries, tonumber(ARGV[2]))
