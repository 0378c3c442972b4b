-- Scans of a queue, a page at a time (peek, sizes, purge), and what needs none (next_score, reserved, remove).
--
-- A page begins after the score and id of the last job of the page before, which may have been removed since: so jobs
-- that are added and removed between two pages don't shift the second one.

local VALUES = 100  -- elements in memory at a time: they may be large

-- Whether a comes after b, by bytes, as Redis sorts equal scores; Lua's own comparison follows the server's locale.
local function is_after(a, b)
  for n = 1, math.min(#a, #b) do
    local x, y = string.byte(a, n), string.byte(b, n)
    if x ~= y then
      return x > y
    end
  end
  return #a > #b
end

local function rank_after(score, id)
  if call('ZSCORE', queue.index, id) == score then
    return call('ZRANK', queue.index, id) + 1
  end
  local first = call('ZCOUNT', queue.index, '-inf', '(' .. score)
  local last = call('ZCOUNT', queue.index, '-inf', score)
  while first < last do
    local middle = math.floor((first + last) / 2)
    if is_after(call('ZRANGE', queue.index, middle, middle)[1], id) then
      last = middle
    else
      first = middle + 1
    end
  end
  return first
end

-- Calls `with` for each job from a rank on, at most `limit` of them: id, value, score as text, whether it is reserved.
-- The page ends after a job for which it returns false, the scan before one for which it returns nil. Returns score and
-- id of the page's last job, or empty texts at the end of the scan.
local function scan_jobs(rank, limit, with)
  local stop = rank + limit
  while rank < stop do
    local found = call('ZRANGE', queue.index, rank, math.min(rank + VALUES, stop) - 1, 'WITHSCORES')
    if #found == 0 then
      return '', ''
    end
    local ids = {}
    for at = 1, #found, 2 do
      ids[#ids + 1] = found[at]
    end
    local values = call('HMGET', queue.hash, unpack(ids))
    for n, id in ipairs(ids) do
      local goes_on = true
      if values[n] then
        local _, reserved = state(values[n])
        goes_on = with(id, values[n], found[2 * n], reserved)
      end
      if goes_on == nil then
        return '', ''
      end
      if not goes_on then
        local is_last = rank + n >= call('ZCARD', queue.index)
        return is_last and '' or found[2 * n], is_last and '' or id
      end
    end
    rank = rank + #ids
    if rank >= stop then
      local is_last = rank >= call('ZCARD', queue.index)
      return is_last and '' or found[#found], is_last and '' or found[#found - 1]
    end
  end
  return '', ''
end

-- Arguments: shift, state or nothing, count, how many jobs to scan, score and id after which the page begins, or
-- nothing. Returns score and id after which the next page begins, or nothing; then id, element, score, state of each,
-- and whether it is reserved.
local function peek()
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
end

-- Arguments: shift, how many jobs to scan, score and id after which the page begins, or nothing. Returns the number of
-- jobs, of ready jobs, of reserved jobs on this page (of those that are not ready), and score and id after which the
-- next page begins, or nothing.
local function sizes()
  local now = clock()
  local ready = call('ZCOUNT', queue.index, '-inf', now)
  local reserved_count = 0
  local rank = ARGV[4] == '' and ready or rank_after(ARGV[3], ARGV[4])
  local score, id = scan_jobs(rank, tonumber(ARGV[2]), function(_, _, _, reserved)
    reserved_count = reserved_count + (reserved and 1 or 0)
    return true
  end)
  return {call('ZCARD', queue.index), ready, reserved_count, score, id}
end

-- Arguments: shift, how many jobs to scan, score and id after which the page begins, or nothing. Removes jobs that are
-- not reserved. Returns their number, and score and id after which the next page begins, or nothing.
local function purge()
  local now = clock()
  local ids = {}
  local rank = ARGV[4] == '' and 0 or rank_after(ARGV[3], ARGV[4])
  local score, last = scan_jobs(rank, tonumber(ARGV[2]), function(id, _, at, reserved)
    if not reserved or tonumber(at) <= now then
      ids[#ids + 1] = id
    end
    return true
  end)
  end_jobs(queue, ids, now)
  return {#ids, score, last}
end

-- Returns the score of the first job, or nothing.
local function next_score()
  return call('ZRANGE', queue.index, 0, 0, 'WITHSCORES')[2] or ''
end

-- Arguments: shift, then ids. Returns element and score of each that is reserved, else two empty texts.
local function reserved()
  local found = {}
  for at = 2, #ARGV do
    local value = call('HGET', queue.hash, ARGV[at])
    local reserved
    if value then
      local _
      _, reserved = state(value)
    end
    local n = #found
    found[n + 1] = reserved and value or ''
    found[n + 2] = reserved and call('ZSCORE', queue.index, ARGV[at]) or ''
  end
  return found
end

-- Arguments: shift, then ids. Removes jobs that are not reserved. Returns 1 or 0 for each.
local function remove()
  local now = clock()
  local done = {}
  for at = 2, #ARGV do
    local id = ARGV[at]
    local value = call('HGET', queue.hash, id)
    local is_free = false
    if value then
      local _, reserved = state(value)
      is_free = not reserved or (tonumber(call('ZSCORE', queue.index, id)) or 0) <= now
    end
    if is_free then
      end_jobs(queue, {id}, now)
    end
    done[#done + 1] = is_free and 1 or 0
  end
  return done
end
