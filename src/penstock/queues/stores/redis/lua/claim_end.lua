-- Arguments: shift, the claim's key, delay in ms to return jobs with, or nothing to end them, first and last number of
-- the claim's jobs. Returns the number of the claim's jobs, and how many of these were still under it. After the last
-- one the claim is removed.
allow_when_full()
local now = clock()
local size = claim_size() or 0
local from, to = tonumber(ARGV[4]), math.min(tonumber(ARGV[5]), size)
local is_end = ARGV[3] == ''
local mature = is_end or text(in_range(now + ARGV[3]))
local ids, tokens = claimed_ids(from, to)
local mine, scores, values = {}, {}, {}
each_claimed(ids, tokens, function(id, value, tries, before)
  local n = #scores
  mine[#mine + 1] = id
  scores[n + 1], scores[n + 2] = mature, id
  values[n + 1], values[n + 2] = id, with_state(value, before, one_more(tries), 'false')
end)
if is_end then
  end_jobs(queue, mine, now)
elseif #mine > 0 then
  call('HSET', queue.hash, unpack(values))
  call('ZADD', queue.index, unpack(scores))
end
add_to_counter(queue, is_end and 'commit' or 'rollback', #mine)
if #ids > 0 then
  call('HDEL', queue.claimed, unpack(ids))
end
if to >= size then
  call('DEL', claim)
end
return {size, #mine}
