-- Arguments: shift, the counter to add to or nothing, then id and token of each. Gives 1 or 0 for each.
local ids, done, seen = {}, {}, {}
local count = each_lease(3, 2, function(n, id)
  if not seen[id] then
    seen[id] = true
    ids[#ids + 1] = id
    done[n] = 1
  end
end)
end_jobs(queue, ids, clock())
if ARGV[2] ~= '' then
  add_to_counter(queue, ARGV[2], #ids)
end
return outcomes(done, count)
