-- Arguments: shift, how many jobs to scan, score and id after which the page begins, or nothing. Returns the number of
-- jobs, of ready jobs, of reserved jobs on this page (of those that are not ready), and score and id after which the
-- next page begins, or nothing.
local now = clock()
local ready = call('ZCOUNT', queue.index, '-inf', now)
local reserved_count = 0
local rank = ARGV[4] == '' and ready or rank_after(ARGV[3], ARGV[4])
local score, id = scan_jobs(rank, tonumber(ARGV[2]), function(_, _, _, reserved)
  reserved_count = reserved_count + (reserved and 1 or 0)
  return true
end)
return {call('ZCARD', queue.index), ready, reserved_count, score, id}
