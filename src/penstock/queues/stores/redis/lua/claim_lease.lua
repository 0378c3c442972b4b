-- Arguments: shift, the claim's key, lease in ms, first and last number of the claim's jobs. Renews their leases.
-- Returns the number of the claim's jobs, then the lease's end, id and element of each that is still under it.
allow_when_full()
local now = clock()
local size = claim_size() or 0
if size > 0 then
  call('HSET', claim, 'whole', 1)
end
local jobs, scores, claimed = {size}, {}, {}
local ids, tokens = claimed_ids(tonumber(ARGV[4]), math.min(tonumber(ARGV[5]), size))
each_claimed(ids, tokens, function(id, value, tries, _, score)
  local n, until_ms = #scores, text(renewed_end(now, ARGV[3], score))
  scores[n + 1], scores[n + 2] = until_ms, id
  claimed[n + 1], claimed[n + 2] = id, until_ms .. ':' .. tries .. ' ' .. claim_key
  n = #jobs
  jobs[n + 1], jobs[n + 2], jobs[n + 3] = until_ms, id, value
end)
if #scores > 0 then
  call('ZADD', queue.index, unpack(scores))
  call('HSET', queue.claimed, unpack(claimed))
end
return jobs
