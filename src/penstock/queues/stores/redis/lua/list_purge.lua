-- redis-list. Removes all elements, and returns their number. The server frees their memory in the background.
local count = redis.call('LLEN', KEYS[1])
redis.call('UNLINK', KEYS[1])
return count
