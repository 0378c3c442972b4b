-- What is done with leases: for ack, nack, extend and move.

-- Calls `with` for each lease that is held: its place in the list, id, value, tries, how much is before the
-- tail, where its arguments begin, and its score. Without `last`, the list goes to the end of the arguments.
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
    local tries, before = held(scores[n], values[n], ARGV[at + 1])
    if tries then
      with(n, id, values[n], tries, before, at, scores[n])
    end
  end
  return #ids
end

-- Gives 1 for each that `done` has, else 0.
local function outcomes(done, count)
  for n = 1, count do
    done[n] = done[n] or 0
  end
  return done
end

-- Whether a job may be moved: under its token, or, without one, because nobody has reserved it.
local function may_move(id, token)
  local value = call('HGET', queue.hash, id)
  if not value then
    return false
  end
  if token == '' then
    local _, reserved = state(value)
    return not reserved
  end
  return held(call('ZSCORE', queue.index, id), value, token) ~= nil
end
