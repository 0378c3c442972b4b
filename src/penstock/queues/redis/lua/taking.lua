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

-- Reserves up to `count` jobs; each adds its id and new value to `jobs`. A lease that was over costs a try.
local function reserve(count, lease, now, jobs)
  local until_ms = text(in_range(now + lease))
  local scores, values, n, begin = {}, {}, 0, #jobs
  ready_jobs(count, now, function(id, value, tries, reserved, before)
    value = with_state(value, before, reserved and one_more(tries) or tries, 'true')
    values[n + 1], values[n + 2] = id, value
    scores[n + 1], scores[n + 2] = until_ms, id
    jobs[begin + n + 1], jobs[begin + n + 2] = id, value
    n = n + 2
  end)
  if #values > 0 then
    call('HSET', queue.hash, unpack(values))
    call('ZADD', queue.index, unpack(scores))
    add_to_counter(queue, 'reserve', #values / 2)
  end
  return until_ms
end
