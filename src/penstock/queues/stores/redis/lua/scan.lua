-- Scans of a queue, a page at a time: for peek, sizes and purge.
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
