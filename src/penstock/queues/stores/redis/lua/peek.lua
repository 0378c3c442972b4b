-- Arguments: shift, state or nothing, count, how many jobs to scan, score and id after which the page begins, or
-- nothing. Returns score and id after which the next page begins, or nothing; then id, element, score, state of each,
-- and whether it is reserved.
local now = clock()
local wanted, count, found = ARGV[2], tonumber(ARGV[3]), {'', ''}
local rank = 0
if ARGV[6] ~= '' then
  rank = rank_after(ARGV[5], ARGV[6])
elseif wanted == 'scheduled' or wanted == 'reserved' then
  rank = call('ZCOUNT', queue.index, '-inf', now)
end

found[1], found[2] = scan_jobs(rank, tonumber(ARGV[4]), function(id, value, score, reserved)
  local is_ready = tonumber(score) <= now
  if wanted == 'ready' and not is_ready then
    return nil
  end
  local job_state = is_ready and 'ready' or (reserved and 'reserved' or 'scheduled')
  if wanted == '' or wanted == job_state then
    local n = #found
    found[n + 1], found[n + 2], found[n + 3], found[n + 4] = id, value, score, job_state
    found[n + 5] = reserved and 1 or 0
    count = count - 1
  end
  return count > 0
end)
return found
