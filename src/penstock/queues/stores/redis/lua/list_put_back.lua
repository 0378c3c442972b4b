-- redis-list. Keys as in `list_push`. Arguments: elements that were popped and not delivered, the oldest last.
redis.call('RPUSH', KEYS[1], unpack(ARGV))
if KEYS[3] ~= KEYS[1] then
  redis.pcall('HINCRBY', KEYS[3], 'counter_get', -#ARGV)
end
return #ARGV
