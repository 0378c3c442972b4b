-- redis-list. Keys as in `list_push`. Argument: count. Removes elements from the old end, and returns them, or nothing.
local found = redis.call('RPOP', KEYS[1], ARGV[1])
if found and KEYS[3] ~= KEYS[1] then
  redis.pcall('HINCRBY', KEYS[3], 'counter_get', #found)
end
return found
