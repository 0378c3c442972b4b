-- How jobs are taken: for pop, reserve and claim.

local ORPHANS_ROUNDS = 10  -- a round drops up to as many as are wanted: what is left waits for the next call

-- Calls `with` for up to `count` jobs that are ready: id, value, tries, whether it is an expired lease, how much is before
-- the tail. An id in the index without an element is nothing that could be handed out: it goes.
local function ready_jobs(count, now, with)
  local taken = 0  -- these stay in front until all are found
  for _ = 1, ORPHANS_ROUNDS do
    local ids = call('ZRANGEBYSCORE', queue.index, '-inf', now, 'LIMIT', taken, count - taken)
    if #ids == 0 then
      return
    end
    local values = call('HMGET', queue.hash, unpack(ids))
    local orphans = {}
    for n, id in ipairs(ids) do
      if values[n] then
        with(id, values[n], state(values[n]))
        taken = taken + 1
      else
        orphans[#orphans + 1] = id
      end
    end
    if #orphans == 0 then
      return
    end
    call('ZREM', queue.index, unpack(orphans))
  end
end

-- What a job has behind it whose lease ran out: its tries, one more if work had begun, and how many leases in a row ran out
-- before work began.
local function past(id, tries)
  local ahead = ahead_of(call('ZSCORE', queue.index, id))
  return ahead == 0 and one_more(tries) or tries, ahead
end

-- Reserves up to `count` jobs; each adds its id and new value to `jobs`. Work on the first `begin` of them begins at once,
-- but for jobs that come back from a lease that ran out; of all if it is nil. Gives the leases' end, and for each job that
-- comes back its place, from 0 on, and how many leases in a row ran out before work began.
local function reserve(count, lease, begin, now, jobs)
  local time = in_range(now + lease - (begin and 1 or 0))  -- a fraction later, and never too late
  local until_ms, until_ahead = text(time), end_text(time, 1)
  local scores, values, back, n, first = {}, {}, {}, 0, #jobs
  ready_jobs(count, now, function(id, value, tries, reserved, before)
    local score = begin and n >= 2 * begin and until_ahead or until_ms
    if reserved then
      local unbegun
      tries, unbegun = past(id, tries)
      back[#back + 1], back[#back + 2] = n / 2, unbegun
      score = begin and end_text(time, unbegun + 1) or until_ms
    end
    value = with_state(value, before, tries, 'true')
    values[n + 1], values[n + 2] = id, value
    scores[n + 1], scores[n + 2] = score, id
    jobs[first + n + 1], jobs[first + n + 2] = id, value
    n = n + 2
  end)
  if #values > 0 then
    call('HSET', queue.hash, unpack(values))
    call('ZADD', queue.index, unpack(scores))
    add_to_counter(queue, 'reserve', #values / 2)
  end
  return until_ms, back
end
