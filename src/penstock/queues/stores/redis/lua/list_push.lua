-- redis-list. Keys: the list, a string that is there for a moment after a signal that may be needless, and the hash of
-- statistics, or the list once more where others keep the counters.
-- Arguments: channel or nothing, then elements. Gives how long the list was before.
--
-- Whoever waits has seen an empty list, so only the first job of one is news. But if jobs lie there already, a signal may
-- have been lost: then it is sent again, though not with each of many jobs.
local TOLD_MS = 50

local before = redis.call('LLEN', KEYS[1])
redis.call('LPUSH', KEYS[1], unpack(ARGV, 2))
if KEYS[3] ~= KEYS[1] then
  redis.pcall('HINCRBY', KEYS[3], 'counter_put', #ARGV - 1)
end
if ARGV[1] ~= '' and (before == 0 or redis.call('SET', KEYS[2], 1, 'NX', 'PX', TOLD_MS)) then
  local time = redis.call('TIME')
  redis.call('PUBLISH', ARGV[1], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
end
return before
