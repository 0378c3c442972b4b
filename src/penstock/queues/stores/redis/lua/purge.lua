-- Arguments: shift, how many to look at, score and id of the last one seen or nothing. Removes jobs that nobody has
-- reserved; gives how many, and where the next page begins.
local now = clock()
local ids = {}
local rank = ARGV[4] == '' and 0 or rank_after(ARGV[3], ARGV[4])
local score, last = look_through(rank, tonumber(ARGV[2]), function(id, _, at, reserved)
  if not reserved or tonumber(at) <= now then
    ids[#ids + 1] = id
  end
  return true
end)
end_jobs(queue, ids, now)
return {#ids, score, last}
