-- Leases: for ack, nack, extend and move.

-- Calls `with` for each lease whose token is valid: its number in the list, id, value, tries, the length of the value
-- before the tail, where its arguments begin, and its score. Without `last`, the list goes to the end of the arguments.
-- Returns the length of the list.
local function each_lease(begin, fields, with, last)
  local ids = {}
  for at = begin, last or #ARGV, fields do
    ids[#ids + 1] = ARGV[at]
  end
  if #ids == 0 then
    return 0
  end
  local scores = call('ZMSCORE', queue.index, unpack(ids))
  local values = call('HMGET', queue.hash, unpack(ids))
  for n, id in ipairs(ids) do
    local at = begin + (n - 1) * fields
    local tries, before = check_token(scores[n], values[n], ARGV[at + 1])
    if tries then
      with(n, id, values[n], tries, before, at, scores[n])
    end
  end
  return #ids
end

-- Returns a list of `count` entries: 1 for those in `done`, else 0.
local function outcomes(done, count)
  for n = 1, count do
    done[n] = done[n] or 0
  end
  return done
end

-- Returns whether a job may be moved: with its token, or without one if it is not reserved.
local function may_move(id, token)
  local value = call('HGET', queue.hash, id)
  if not value then
    return false
  end
  if token == '' then
    local _, reserved = state(value)
    return not reserved
  end
  return check_token(call('ZSCORE', queue.index, id), value, token) ~= nil
end

-- Arguments: shift, the counter to add to or nothing, the number of jobs on which work has begun, id and token of each
-- of those, then of each job to end. Returns 1 or 0 for each job to end.
local function ack()
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
end

-- Arguments: shift, channel or nothing, tries to add, then id, token and delay of each. Returns 1 or 0 for each.
local function nack()
  allow_when_full()
  local now = clock()
  local first = ARGV[2] ~= '' and first_score(queue)
  local scores, values, done, seen, earliest = {}, {}, {}, {}, nil
  local count = each_lease(4, 3, function(n, id, value, tries, before, at)
    if seen[id] then
      return
    end
    seen[id] = true
    local mature = in_range(now + ARGV[at + 2])
    local size = #values
    values[size + 1], values[size + 2] = id, with_state(value, before, text(tries + ARGV[3]), 'false')
    scores[size + 1], scores[size + 2] = text(mature), id
    earliest = (not earliest or mature < earliest) and mature or earliest
    done[n] = 1
  end)
  if #values > 0 then
    call('HSET', queue.hash, unpack(values))
    call('ZADD', queue.index, unpack(scores))
  end
  if ARGV[3] == '0' then
    add_to_counter(queue, 'reserve', -#values / 2)  -- a reserve that is undone
  else
    add_to_counter(queue, 'rollback', #values / 2)
  end
  send_signal(queue, ARGV[2], first or nil, earliest, now)
  return outcomes(done, count)
end

-- Arguments: shift, then id, token and lease in ms of each, and whether work on it has begun: 1 or 0. Returns the new
-- token of each, or nothing.
local function extend()
  allow_when_full()
  local now = clock()
  local has_claims = call('EXISTS', queue.claimed) == 1
  local scores, tokens = {}, {}
  local count = each_lease(2, 4, function(n, id, _, tries, _, at, score)
    local unbegun = ARGV[at + 3] == '1' and 0 or unbegun_leases(score)
    local until_ms = renewed_end(now, ARGV[at + 2] - (unbegun > 0 and 1 or 0), score)
    scores[#scores + 1] = lease_end(until_ms, unbegun)
    scores[#scores + 1] = id
    tokens[n] = text(until_ms) .. ':' .. tries
    if has_claims then
      -- The job stays under its claim.
      local token, key = match(call('HGET', queue.claimed, id) or '', '^(%S+) (.*)$')
      if token == ARGV[at + 1] then
        call('HSET', queue.claimed, id, tokens[n] .. ' ' .. key)
      end
    end
  end)
  for n = 1, count do
    tokens[n] = tokens[n] or ''
  end
  if #scores > 0 then
    call('ZADD', queue.index, unpack(scores))
  end
  return tokens
end

-- Arguments: shift, lease in ms, then id and token of each, an empty token for a job that waits. Holds jobs that move
-- to another slot: a job that waits is reserved. Returns the token of each, or nothing if the job may not be moved.
local function hold()
  allow_when_full()
  local now = clock()
  local tokens = {}
  for at = 3, #ARGV, 2 do
    local id, token = ARGV[at], ARGV[at + 1]
    if not may_move(id, token) then
      token = ''
    elseif token == '' then
      local value = call('HGET', queue.hash, id)
      local tries, _, before = state(value)
      local until_ms = text(renewed_end(now, ARGV[2], call('ZSCORE', queue.index, id)))
      call('HSET', queue.hash, id, with_state(value, before, tries, 'true'))
      call('ZADD', queue.index, until_ms, id)
      token = until_ms .. ':' .. tries
    end
    tokens[#tokens + 1] = token
  end
  return tokens
end
