-- The scripts of redis-list. Keys: the list, a string that is set for REPEAT_MS by a repeated signal, and the hash of
-- statistics, or the list once more if the script counts nothing.

local REPEAT_MS = 50

-- Arguments: channel or nothing, then elements. Returns the length of the list before.
--
-- A waiting consumer has seen an empty list, so a signal is needed only for the first job of one. But if there are jobs
-- already, a signal may have been lost: then it is repeated, at most once in REPEAT_MS.
local function list_push()
  local before = redis.call('LLEN', KEYS[1])
  redis.call('LPUSH', KEYS[1], unpack(ARGV, 2))
  if KEYS[3] ~= KEYS[1] then
    redis.pcall('HINCRBY', KEYS[3], 'counter_put', #ARGV - 1)
  end
  if ARGV[1] ~= '' and (before == 0 or redis.call('SET', KEYS[2], 1, 'NX', 'PX', REPEAT_MS)) then
    local time = redis.call('TIME')
    redis.call('PUBLISH', ARGV[1], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
  end
  return before
end

-- Argument: count. Removes elements from the old end, and returns them, or nothing.
local function list_pop()
  local found = redis.call('RPOP', KEYS[1], ARGV[1])
  if found and KEYS[3] ~= KEYS[1] then
    redis.pcall('HINCRBY', KEYS[3], 'counter_get', #found)
  end
  return found
end

-- Arguments: elements that were popped and not delivered, the oldest last.
local function list_put_back()
  redis.call('RPUSH', KEYS[1], unpack(ARGV))
  if KEYS[3] ~= KEYS[1] then
    redis.pcall('HINCRBY', KEYS[3], 'counter_get', -#ARGV)
  end
  return #ARGV
end

-- Removes all elements, and returns their number. The server frees their memory in the background.
local function list_purge()
  local count = redis.call('LLEN', KEYS[1])
  redis.call('UNLINK', KEYS[1])
  return count
end
