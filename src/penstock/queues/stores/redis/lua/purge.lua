-- Arguments: shift, how many jobs to scan, score and id after which the page begins, or nothing. Removes jobs that are
-- not reserved. Returns their number, and score and id after which the next page begins, or nothing.
local now = clock()
local ids = {}
local rank = ARGV[4] == '' and 0 or rank_after(ARGV[3], ARGV[4])
local score, last = scan_jobs(rank, tonumber(ARGV[2]), function(id, _, at, reserved)
  if not reserved or tonumber(at) <= now then
    ids[#ids + 1] = id
  end
  return true
end)
end_jobs(queue, ids, now)
return {#ids, score, last}
