-- Claims. KEYS[9] is the hash of one claim, ARGV[2] the claim's key: `n` is the number of its jobs, `1` to `n` are
-- their ids, `whole` is set when the claim is renewed. It exists until the claim is acked or nacked. The queue's
-- `claimed` hash says whether a job is still under the claim.

local claim_hash, claim_key = KEYS[9], ARGV[2]

local function claim_size()
  return tonumber(call('HGET', claim_hash, 'n') or nil)
end

-- Returns the ids and tokens of those jobs from one number to another that have not been claimed by others since.
local function claimed_ids(from, to)
  local fields, ids, tokens = {}, {}, {}
  for number = from, to do
    fields[#fields + 1] = number
  end
  if #fields > 0 then
    local all = call('HMGET', claim_hash, unpack(fields))
    for n, entry in ipairs(call('HMGET', queue.claimed, unpack(all))) do
      local token, key = match(entry or '', '^(%S+) (.*)$')
      if key == claim_key then
        ids[#ids + 1], tokens[#tokens + 1] = all[n], token
      end
    end
  end
  return ids, tokens
end

-- Calls `with` for each of the jobs that is still reserved under its token: id, value, tries, the length of the value
-- before the tail, score.
local function each_claimed(ids, tokens, with)
  if #ids == 0 then
    return
  end
  local scores = call('ZMSCORE', queue.index, unpack(ids))
  local values = call('HMGET', queue.hash, unpack(ids))
  for n, id in ipairs(ids) do
    local tries, before = check_token(scores[n], values[n], tokens[n])
    if tries then
      with(id, values[n], tries, before, scores[n])
    end
  end
end

-- Arguments: shift, the claim's key, lease in ms, count, 1 to add to an existing claim, 0 to make a new one, 1 to leave
-- the jobs unread. Returns 1, then what `reserve_jobs` returns and id and element of each job, or, of jobs that are left
-- unread, their number; or 0 if a new claim exists already or an existing one doesn't. Without jobs no claim is made. Nothing is added to a claim that was renewed: the one who renewed it got all
-- its jobs, and will end them as a whole.
local function claim()
  allow_when_full()
  local size = claim_size()
  if (size ~= nil) ~= (ARGV[5] == '1') or (size and call('HEXISTS', claim_hash, 'whole') == 1) then
    return {0}
  end
  size = size or 0
  local jobs = {1, '', {}}
  jobs[2], jobs[3] = reserve_jobs(tonumber(ARGV[4]), tonumber(ARGV[3]), nil, clock(), jobs)
  local numbers, claimed = {}, {}
  for at = 4, #jobs, 2 do
    local tries = state(jobs[at + 1])
    size = size + 1
    numbers[at - 3], numbers[at - 2] = size, jobs[at]
    claimed[at - 3], claimed[at - 2] = jobs[at], jobs[2] .. ':' .. tries .. ' ' .. claim_key
  end
  if #claimed > 0 then
    call('HSET', claim_hash, 'n', size, unpack(numbers))
    call('HSET', queue.claimed, unpack(claimed))
  end
  return ARGV[6] == '1' and {1, #claimed / 2} or jobs
end

-- Arguments: shift, the claim's key, lease in ms, first and last number of the claim's jobs, 1 to leave the jobs unread.
-- Renews their leases. Returns the number of the claim's jobs, then the lease's end, id and element of each that is
-- still under it, or, of jobs that are left unread, their number.
local function renew_claim()
  allow_when_full()
  local now = clock()
  local size = claim_size() or 0
  if size > 0 then
    call('HSET', claim_hash, 'whole', 1)
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
  return ARGV[6] == '1' and {size, #scores / 2} or jobs
end

-- Arguments: shift, the claim's key, delay in ms to return jobs with, or nothing to end them, first and last number of
-- the claim's jobs. Returns the number of the claim's jobs, and how many of these were still under it. After the last
-- one the claim is removed.
local function end_claim()
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
    call('DEL', claim_hash)
  end
  return {size, #mine}
end
