-- redis-list. Keys as of `list_push`. Argument: how many. Takes elements from the old end; gives them, or nothing.
local found = redis.call('RPOP', KEYS[1], ARGV[1])
if found and KEYS[3] ~= KEYS[1] then
  redis.pcall('HINCRBY', KEYS[3], 'counter_get', #found)
end
return found
