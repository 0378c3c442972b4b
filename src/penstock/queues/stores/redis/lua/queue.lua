-- The beginning of every script of redis-oq. A queue has these keys; the first two are Keuss', the others are ours:
--
--   index      sorted set   id -> ready at, in ms; of a reserved job, the end of its lease, with a fraction if work
--                           on the job has not begun under that lease: see `unbegun_leases`
--   hash       hash         id -> the element, JSON
--   unique     hash         unique key -> "KEEP END ID": KEEP in ms, END 0 while the job exists
--   ids        hash         id -> its unique key, while the job exists
--   ends       sorted set   unique key -> expires at, in ms
--   signalled  string       set for REPEAT_MS by a repeated signal
--   claimed    hash         id -> "TOKEN KEY" of the claim under which it was reserved
--   stats      hash         Keuss' statistics: counter_X -> a number; the index once more if the script counts nothing
--
-- KEYS are the keys of a queue in this order. ARGV[1], the shift, is added to the clock: tests move it. A script is
-- this file, others after it, and a call of the function of its name: see `scripts.py`.

local SCORE_MIN, SCORE_MAX = 1e12, 9999999999999  -- Keuss compares scores as texts, so all have 13 digits
local REPEAT_MS = 50  -- between two repeated signals of a queue
local SWEEP = 3  -- unique keys that are checked by each push of another one

local call = redis.call
local sub, match, find, format = string.sub, string.match, string.find, string.format

local function queue_at(n)
  return {
    index = KEYS[n], hash = KEYS[n + 1], unique = KEYS[n + 2], ids = KEYS[n + 3], ends = KEYS[n + 4],
    signalled = KEYS[n + 5], claimed = KEYS[n + 6], stats = KEYS[n + 7]
  }
end

local queue = queue_at(1)

local function clock()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
end

-- Numbers are sent to Redis as texts: its own formatting is slow.
local function text(number)
  return format('%.0f', number)
end

local function in_range(time)
  return math.max(SCORE_MIN, math.min(SCORE_MAX, time))
end

-- A lease under which work has not begun ends at a fraction of a millisecond: the number of such leases in a row, this
-- one included, in units of 1/1024. All other scores are whole. Keuss compares scores as texts and adds whole
-- milliseconds to them, so the fraction changes nothing for it. It is not part of a token, which stays valid when work
-- begins.
local UNITS, UNITS_MAX = 1024, 1023

local function unbegun_leases(score)
  local ms = tonumber(score)
  return math.floor((ms - math.floor(ms)) * UNITS + 0.5)
end

local function lease_end(ms, unbegun)
  return unbegun == 0 and text(ms) or format('%.17g', ms + math.min(unbegun, UNITS_MAX) / UNITS)
end

-- Returns the end of a lease that is renewed. Renewed twice in the same millisecond it must end later each time, since
-- a lease is known by its end.
local function renewed_end(now, lease, old)
  local time = in_range(now + lease)
  old = math.floor(tonumber(old))
  return (time <= old and old - time < 1000) and old + 1 or time
end

-- A Redis whose memory is full (maxmemory) refuses a script's first command that may need memory, but none after a
-- write. After this write, which changes nothing, jobs can be reserved and returned there, so that the queue can be
-- emptied.
local function allow_when_full()
  call('HDEL', queue.ids, '')
end

-- Elements. Their state is at the end, `,"tries":N,"reserved":true}` or `,"tries":N}`: the tail.
--
-- A JSON object that ends with a tail has that state, whatever its payload contains: the last brace closes the object
-- itself. Between it and `"tries":` there are no quotes but those of `"reserved"`, so the text there is not inside a
-- string; the quote before `tries` follows a comma, so it is not escaped and opens a string; and no other brace comes
-- after it, so the field belongs to the object that the last brace closes.
--
-- Returns tries as a text, whether it is reserved, and the length of the value before the tail: nil where the value
-- must be decoded, as with elements that Node wrote. A value that can't be decoded is not reserved and has 0 tries.
-- Keuss reads `reserved` null as true.
local function state(value)
  -- Nearly all have fewer than ten tries: then it is known where the tail must begin.
  local tries = match(value, '^,"tries":(%d),"reserved":true}$', -27)
  if tries then
    return tries, true, #value - 27
  end
  local is_fresh = not find(value, '"reserved"', 1, true)
  local length = is_fresh and 11 or 28
  tries = match(value, is_fresh and '^,"tries":(%d)}$' or '^,"tries":(%d),"reserved":false}$', -length)
  if tries then
    return tries, false, #value - length
  end
  local ending = sub(value, -64)
  local at, reserved
  at, tries, reserved = match(ending, '(),"tries":(%d+),"reserved":(%a+)}$')
  if reserved == 'true' or reserved == 'false' then
    return tries, reserved == 'true', #value - #ending + at - 1
  end
  at, tries = match(ending, '(),"tries":(%d+)}$')
  if at and is_fresh then
    return tries, false, #value - #ending + at - 1
  end
  local is_read, element = pcall(cjson.decode, value)
  if not is_read or type(element) ~= 'table' then
    return '0', false, nil
  end
  tries = math.max(0, math.floor(tonumber(element.tries) or 0))
  return text(tries), element.reserved ~= nil and element.reserved ~= false, nil
end

-- Returns the value with another state. The rest stays as it is: decoding and encoding in Redis would change payloads.
local function with_state(value, before, tries, reserved)
  if before then
    return sub(value, 1, before) .. ',"tries":' .. tries .. ',"reserved":' .. reserved .. '}'
  end
  local head = match(value, '^(.*)}%s*$')
  if not head then
    head = value  -- not an object
  elseif find(head, '^%s*{%s*$') then
    return '{"tries":' .. tries .. ',"reserved":' .. reserved .. '}'
  end
  return head .. ',"tries":' .. tries .. ',"reserved":' .. reserved .. '}'
end

local function one_more(tries)
  return text(tries + 1)
end

-- A token is the end of a lease, in 13 digits, and the tries. If it is that of the job's lease, returns tries and the
-- length of the value before the tail; else nil.
local function check_token(score, value, token)
  if score and value then
    local tries, reserved, before = state(value)
    if reserved and sub(score, 1, 13) .. ':' .. tries == token then
      return tries, before
    end
  end
  return nil
end

-- Signals. A waiting consumer polls when the first job of the queue becomes ready, so a signal is needed only for a job
-- that is ready before it. But if the first job is ready and still there, a signal may have been lost (Keuss drops
-- some): then it is repeated, at most once in REPEAT_MS.
local function first_score(place)
  return tonumber(call('ZRANGE', place.index, 0, 0, 'WITHSCORES')[2])
end

local function send_signal(place, channel, first, earliest, now)
  if channel == '' or not earliest then
    return
  end
  if first and first <= earliest then
    if first > now or not call('SET', place.signalled, 1, 'NX', 'PX', REPEAT_MS) then
      return
    end
    earliest = math.max(first, SCORE_MIN)
  end
  call('PUBLISH', channel, text(earliest))
end

-- Counters are written by the script that does what they count, after it: so they are exact, and a Redis whose memory
-- is full doesn't refuse them. A counter that is not a number must not make the script fail.
local function add_to_counter(place, counter, count)
  if count ~= 0 and place.stats ~= place.index then
    redis.pcall('HINCRBY', place.stats, 'counter_' .. counter, text(count))
  end
end

-- Unique keys. The time of a key begins when its job ends, or when it is noticed that a peer has ended the job.
local function end_unique(place, id, now)
  local key = call('HGET', place.ids, id)
  if not key then
    return nil
  end
  call('HDEL', place.ids, id)
  local keep, _, holder = match(call('HGET', place.unique, key) or '', '^(%d+) (%d+) (.*)$')
  if holder ~= id then
    return nil
  end
  if tonumber(keep) > 0 then
    call('HSET', place.unique, key, keep .. ' ' .. text(now) .. ' ' .. id)
    call('ZADD', place.ends, now + keep, key)
  else
    call('HDEL', place.unique, key)
  end
  return key, keep
end

local function has_unique(place)
  return call('EXISTS', place.ids) == 1
end

local function end_jobs(place, ids, now)
  if #ids == 0 then
    return
  end
  call('ZREM', place.index, unpack(ids))
  call('HDEL', place.hash, unpack(ids))
  if has_unique(place) then
    for _, id in ipairs(ids) do
      end_unique(place, id, now)
    end
  end
end
