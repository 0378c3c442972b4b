-- Ready jobs: for pop, reserve and claim.

local ORPHAN_ROUNDS = 10  -- a round removes up to `count` orphans: the next call removes the rest

-- Calls `with` for up to `count` ready jobs: id, value, tries, whether it has an expired lease, the length of the value
-- before the tail. An orphan, an id in the index without an element, can't be delivered and is removed.
local function ready_jobs(count, now, with)
  local taken = 0  -- they stay in front until all are found
  for _ = 1, ORPHAN_ROUNDS do
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

-- Returns the tries of a job whose lease has expired, one more if work had begun, and how many leases in a row expired
-- before work began.
local function after_expiry(id, tries)
  local unbegun = unbegun_leases(call('ZSCORE', queue.index, id))
  return unbegun == 0 and one_more(tries) or tries, unbegun
end

-- Reserves up to `count` jobs, and appends the id and new value of each to `jobs`. Work begins at once on the first
-- `begin` of them, except jobs with an expired lease; if it is nil, on all. Returns the end of the leases, and for each
-- job with an expired lease its index, from 0 on, and how many leases in a row expired before work began.
local function reserve_jobs(count, lease, begin, now, jobs)
  local time = in_range(now + lease - (begin and 1 or 0))  -- with the fraction, the lease is not longer than wanted
  local until_ms, until_unbegun = text(time), lease_end(time, 1)
  local scores, values, expired, n, first = {}, {}, {}, 0, #jobs
  ready_jobs(count, now, function(id, value, tries, reserved, before)
    local score = begin and n >= 2 * begin and until_unbegun or until_ms
    if reserved then
      local unbegun
      tries, unbegun = after_expiry(id, tries)
      expired[#expired + 1], expired[#expired + 2] = n / 2, unbegun
      score = begin and lease_end(time, unbegun + 1) or until_ms
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
  return until_ms, expired
end

-- Arguments: shift, count. Returns two lists: id, element and score of each; and, if there are unique keys, the key of
-- each and how long to keep it, which `put_back` needs.
local function pop()
  local now = clock()
  local jobs, ids, keys = {}, {}, {}
  ready_jobs(tonumber(ARGV[2]), now, function(id, value, tries, reserved, before)
    if reserved then
      value = with_state(value, before, (after_expiry(id, tries)), 'false')
    end
    local n = #ids
    jobs[3 * n + 1], jobs[3 * n + 2] = id, value
    ids[n + 1] = id
  end)
  if #ids > 0 then
    for n, score in ipairs(call('ZMSCORE', queue.index, unpack(ids))) do
      jobs[3 * n] = score
    end
    call('ZREM', queue.index, unpack(ids))
    call('HDEL', queue.hash, unpack(ids))
    add_to_counter(queue, 'get', #ids)
    if has_unique(queue) then
      for n, id in ipairs(ids) do
        local key, keep = end_unique(queue, id, now)
        keys[2 * n - 1], keys[2 * n] = key or '', keep or ''
      end
    end
  end
  return {jobs, keys}
end

-- Arguments: shift, then of each job: id, element, score, unique key or nothing, how long to keep it.
local function put_back()
  for at = 2, #ARGV, 5 do
    local id, value, score, key, keep = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
    call('HSET', queue.hash, id, value)
    call('ZADD', queue.index, score, id)
    if key ~= '' then
      local holder = match(call('HGET', queue.unique, key) or '', '^%d+ %d+ (.*)$')
      if not holder or holder == id then
        call('HSET', queue.unique, key, keep .. ' 0 ' .. id)
        call('HSET', queue.ids, id, key)
        call('ZREM', queue.ends, key)
      end
    end
  end
  add_to_counter(queue, 'get', -(#ARGV - 1) / 5)
  return 1
end

-- Arguments: shift, count, lease in ms, on how many of them work begins at once, or nothing for all. Returns the end of
-- the leases and the jobs with an expired lease (see `reserve_jobs`), then id and element of each job.
local function reserve()
  allow_when_full()
  local jobs = {'', {}}
  jobs[1], jobs[2] = reserve_jobs(tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), clock(), jobs)
  return jobs
end
