-- redis-list. Keys: the list, a string that is set for REPEAT_MS by a repeated signal, and the hash of statistics, or
-- the list once more if the script counts nothing. Arguments: channel or nothing, then elements. Returns the length of
-- the list before.
--
-- A waiting consumer has seen an empty list, so a signal is needed only for the first job of one. But if there are jobs
-- already, a signal may have been lost: then it is repeated, at most once in REPEAT_MS.
local REPEAT_MS = 50

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
