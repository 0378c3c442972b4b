-- New jobs: for push and move.

-- Removes unique keys that have expired, and checks some whose job a peer may have ended.
local function sweep_unique(place, now)
  local expired = call('ZRANGEBYSCORE', place.ends, '-inf', now, 'LIMIT', 0, SWEEP)
  for _, key in ipairs(expired) do
    call('ZREM', place.ends, key)
    call('HDEL', place.unique, key)
  end
  for _, id in ipairs(call('HRANDFIELD', place.ids, SWEEP)) do
    if call('HEXISTS', place.hash, id) == 0 then
      end_unique(place, id, now)
    end
  end
end

-- Returns the id of the job that has the key, or had it if the key has not expired.
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

-- A job's arguments begin at `at`, `fields` of them: its id, its element up to `mature`; ready at (nothing: now, dN:
-- after N ms, N: at that time), tries; its unique key, and how long to keep that. Returns the time, the element, the id
-- and the time as a text; if another job has the key, only the id of that one.
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

-- Arguments: shift, channel or nothing, fields of a job (2, 4 or 6: see new_job), then the jobs. Returns their ids if
-- they have unique keys; else nothing, since each has the id that was sent.
local function push()
  local now = clock()
  local fields = tonumber(ARGV[3])
  local first = ARGV[2] ~= '' and first_score(queue)
  local ids, scores, values, added, earliest = {}, {}, {}, 0, nil

  local function write()
    if #values > 0 then
      call('HSET', queue.hash, unpack(values))
      call('ZADD', queue.index, unpack(scores))
      scores, values = {}, {}
    end
  end

  for at = 4, #ARGV, fields do
    local mature, value, id, time = new_job(queue, at, fields, now)
    ids[#ids + 1] = id
    if value then
      local n = #values
      added = added + 1
      values[n + 1], values[n + 2] = id, value
      scores[n + 1], scores[n + 2] = time, id
      earliest = (not earliest or mature < earliest) and mature or earliest
      if fields > 4 then
        write()  -- the next one may have the same key
      end
    end
  end
  write()
  add_to_counter(queue, 'put', added)
  send_signal(queue, ARGV[2], first or nil, earliest, now)
  return fields > 4 and ids or {}
end
