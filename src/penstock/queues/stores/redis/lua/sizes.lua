-- Arguments: shift, how many to look at, score and id of the last one seen or nothing. Gives how many jobs there are,
-- how many are ready, how many of those that were looked at now are reserved, and where the next page begins.
local now = clock()
local ready = call('ZCOUNT', queue.index, '-inf', now)
local reserved_count = 0
local rank = ARGV[4] == '' and ready or rank_after(ARGV[3], ARGV[4])
local score, id = look_through(rank, tonumber(ARGV[2]), function(_, _, _, reserved)
  reserved_count = reserved_count + (reserved and 1 or 0)
  return true
end)
return {call('ZCARD', queue.index), ready, reserved_count, score, id}
