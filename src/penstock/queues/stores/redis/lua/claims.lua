-- Claims. KEYS[9] is the hash of one claim, ARGV[2] the claim's key: `n` is the number of its jobs, `1` to `n` are
-- their ids, `whole` is set when the claim is renewed. It exists until the claim is acked or nacked. The queue's
-- `claimed` hash says whether a job is still under the claim.

local claim, claim_key = KEYS[9], ARGV[2]

local function claim_size()
  return tonumber(call('HGET', claim, 'n') or nil)
end

-- Returns the ids and tokens of those jobs from one number to another that have not been claimed by others since.
local function claimed_ids(from, to)
  local fields, ids, tokens = {}, {}, {}
  for number = from, to do
    fields[#fields + 1] = number
  end
  if #fields > 0 then
    local all = call('HMGET', claim, unpack(fields))
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
