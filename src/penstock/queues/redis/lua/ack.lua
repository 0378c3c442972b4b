-- Arguments: shift, then id and token of each. Gives 1 or 0 for each.
local ids, done, seen = {}, {}, {}
local count = each_lease(2, 2, function(n, id)
  if not seen[id] then
    seen[id] = true
    ids[#ids + 1] = id
    done[n] = 1
  end
end)
end_jobs(queue, ids, clock())
return outcomes(done, count)
