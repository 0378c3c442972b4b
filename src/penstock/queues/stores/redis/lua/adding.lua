-- How jobs come into a queue: for push and move.

-- Forgets keys whose time is over, and looks at some whose job a peer may have ended.
local function sweep_unique(place, now)
  local over = call('ZRANGEBYSCORE', place.ends, '-inf', now, 'LIMIT', 0, SWEEP)
  for _, key in ipairs(over) do
    call('ZREM', place.ends, key)
    call('HDEL', place.unique, key)
  end
  for _, id in ipairs(call('HRANDFIELD', place.ids, SWEEP)) do
    if call('HEXISTS', place.hash, id) == 0 then
      end_unique(place, id, now)
    end
  end
end

-- The job that has the key, be it there or ended not long ago.
local function holder_of(place, key, now)
  sweep_unique(place, now)
  local keep, ended, id = match(call('HGET', place.unique, key) or '', '^(%d+) (%d+) (.*)$')
  if not id then
    return nil
  end
  ended = tonumber(ended)
  if ended == 0 then
    if call('HEXISTS', place.hash, id) == 1 then
      return id
    end
    end_unique(place, id, now)
    ended = now
  end
  if now < ended + keep then
    return id
  end
  call('ZREM', place.ends, key)
  call('HDEL', place.unique, key)
  return nil
end

local last_mature, last_in_range, last_text  -- most jobs of a call have the same time

-- `at` is where a job's arguments are: its id, its element up to `mature`; then, if there are `fields` for them: when
-- (nothing for now, dN for a delay, N for a time), tries, its unique key and for how long. Gives its time, its
-- element, its id and its time as a text; or of these only the id of the job that has the key already.
local function new_job(place, at, fields, now)
  local id, head = ARGV[at], ARGV[at + 1]
  local mature, tries = now, '0'
  if fields > 2 then
    local when = ARGV[at + 2]
    if sub(when, 1, 1) == 'd' then
      mature = now + sub(when, 2)
    elseif when ~= '' then
      mature = tonumber(when)
    end
    tries = ARGV[at + 3]
  end
  if fields > 4 and ARGV[at + 4] ~= '' then
    local key = ARGV[at + 4]
    local holder = holder_of(place, key, now)
    if holder then
      return nil, nil, holder
    end
    call('HSET', place.unique, key, ARGV[at + 5] .. ' 0 ' .. id)
    call('HSET', place.ids, id, key)
    call('ZREM', place.ends, key)
  end
  if mature ~= last_mature then
    last_mature = mature
    last_in_range = in_range(mature)
    last_text = text(last_in_range)
  end
  return last_in_range, head .. last_text .. ',"tries":' .. tries .. '}', id, last_text
end
