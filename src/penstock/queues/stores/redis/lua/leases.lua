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
