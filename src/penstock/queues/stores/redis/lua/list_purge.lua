-- redis-list. Removes all elements; gives how many. The server frees them when it has time.
local count = redis.call('LLEN', KEYS[1])
redis.call('UNLINK', KEYS[1])
return count
