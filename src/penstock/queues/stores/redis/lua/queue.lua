-- The beginning of every script of redis-oq. A queue is these keys; the first two are Keuss', the others are ours alone:
--
--   index   sorted set   id -> when it is ready, in ms; of a reserved job, when its lease is over, and a fraction if work on
--                        the job has not begun under that lease: see `ahead_of`
--   hash    hash         id -> the element, JSON
--   unique  hash         unique key -> "KEEP END ID": KEEP in ms, END 0 while the job is there
--   ids     hash         id -> its unique key, while the job is there
--   ends    sorted set   unique key -> when it is forgotten, in ms
--   told    string       there for a moment after a signal that may be needless
--   claimed hash         id -> "TOKEN KEY" of the claim that it was reserved under
--   stats   hash         Keuss' statistics: counter_X -> how many; the index once more where others keep the counters
--
-- A script is told the keys of a queue, then its arguments; the first argument shifts the clock, for tests.

local SCORE_MIN, SCORE_MAX = 1e12, 9999999999999  -- Keuss compares scores as texts, so all have 13 digits
local TOLD_MS = 50
local SWEEP = 3  -- unique keys that are looked at with each push of another one

local call = redis.call
local sub, match, find, format = string.sub, string.match, string.find, string.format

local function queue_at(n)
  return {
    index = KEYS[n], hash = KEYS[n + 1], unique = KEYS[n + 2], ids = KEYS[n + 3], ends = KEYS[n + 4],
    told = KEYS[n + 5], claimed = KEYS[n + 6], stats = KEYS[n + 7]
  }
end

local queue = queue_at(1)

local function clock()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
end

-- Numbers go to Redis as texts: its own way of writing them is slow.
local function text(number)
  return format('%.0f', number)
end

local function in_range(time)
  return math.max(SCORE_MIN, math.min(SCORE_MAX, time))
end

-- A lease that has not begun ends at a fraction of a millisecond, in units of 1/1024: 1, and 1 more for each such lease
-- just before it that ran out. Keuss compares scores as texts and adds whole milliseconds to them: it doesn't notice, and
-- all other scores are whole. The fraction is no part of a token, which so stays good when work begins.
local UNITS, UNITS_MAX = 1024, 1023

local function ahead_of(score)
  local ms = tonumber(score)
  return math.floor((ms - math.floor(ms)) * UNITS + 0.5)
end

local function end_text(ms, ahead)
  return ahead == 0 and text(ms) or format('%.17g', ms + math.min(ahead, UNITS_MAX) / UNITS)
end

-- When a lease that is made anew is over. Within the same moment it must end at another time than before, later each
-- time, since its end is what tells the leases of a job apart.
local function new_end(now, lease, old)
  local time = in_range(now + lease)
  old = math.floor(tonumber(old))
  return (time <= old and old - time < 1000) and old + 1 or time
end

-- A full Redis (maxmemory) refuses the first command of a script that may need memory, but none after a write. With this
-- write, which changes nothing, jobs can be reserved and given back there, so that the queue can be emptied.
local function go_on_when_full()
  call('HDEL', queue.ids, '')
end

-- Elements. Their state is the last of them, `,"tries":N,"reserved":true}` or `,"tries":N}`: the tail.
--
-- That a value ends so, and is a JSON object, proves that this is its state, whatever a payload holds: the last brace
-- closes the object itself. Between it and `"tries":` there is no quote but those of `"reserved"`, so that the text there
-- is inside no string; the quote before `tries` follows a comma, so it is no escaped one and opens the string; and no
-- other brace comes after it, so the field belongs to the object that the last brace closes.
--
-- Gives tries as a text, whether it is reserved, and how much of the value stands before the tail: nothing where the
-- state must be read by decoding, as with elements that Node wrote. What can't be decoded waits, and has no tries. Keuss
-- takes `reserved` null for true.
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

-- The value with another state. Nothing else in it is touched: decoding and encoding in Redis would change payloads.
local function with_state(value, before, tries, reserved)
  if before then
    return sub(value, 1, before) .. ',"tries":' .. tries .. ',"reserved":' .. reserved .. '}'
  end
  local head = match(value, '^(.*)}%s*$')
  if not head then
    head = value  -- no object at all
  elseif find(head, '^%s*{%s*$') then
    return '{"tries":' .. tries .. ',"reserved":' .. reserved .. '}'
  end
  return head .. ',"tries":' .. tries .. ',"reserved":' .. reserved .. '}'
end

local function one_more(tries)
  return text(tries + 1)
end

-- A lease is held by whoever knows when it ends, in 13 digits, and how many tries there were. Gives tries, and how much is
-- before the tail.
local function held(score, value, token)
  if score and value then
    local tries, reserved, before = state(value)
    if reserved and sub(score, 1, 13) .. ':' .. tries == token then
      return tries, before
    end
  end
  return nil
end

-- Signals. Whoever waits looks again when the first job of the queue is due, at the latest: only a job that comes before
-- it is news. But if the first is due already and still there, a signal may have been lost (Keuss drops some): then it is
-- sent again, though not with each of many jobs.
local function first_of(place)
  return tonumber(call('ZRANGE', place.index, 0, 0, 'WITHSCORES')[2])
end

local function tell(place, channel, first, earliest, now)
  if channel == '' or not earliest then
    return
  end
  if first and first <= earliest then
    if first > now or not call('SET', place.told, 1, 'NX', 'PX', TOLD_MS) then
      return
    end
    earliest = math.max(first, SCORE_MIN)
  end
  call('PUBLISH', channel, text(earliest))
end

-- Counters are written in the script that does what they count, after it: so they are exact, and a Redis that is full
-- refuses none of them. A counter that somebody has spoilt must not undo what was done.
local function add_to_counter(place, counter, much)
  if much ~= 0 and place.stats ~= place.index then
    redis.pcall('HINCRBY', place.stats, 'counter_' .. counter, text(much))
  end
end

-- Unique keys. A job's key is over when the job ends, or when it is noticed that a peer has ended it.
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
