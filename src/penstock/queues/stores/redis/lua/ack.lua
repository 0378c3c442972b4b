-- Arguments: shift, the counter to add to or nothing, the number of jobs on which work has begun, id and token of each
-- of those, then of each job to end. Returns 1 or 0 for each job to end.
local begun, scores = tonumber(ARGV[3]), {}
if begun > 0 then
  each_lease(4, 2, function(_, id, _, _, _, _, score)
    scores[#scores + 1], scores[#scores + 2] = sub(score, 1, 13), id
  end, 3 + 2 * begun)
  if #scores > 0 then
    call('ZADD', queue.index, unpack(scores))
  end
end
local ids, done, seen = {}, {}, {}
local count = each_lease(4 + 2 * begun, 2, function(n, id)
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
