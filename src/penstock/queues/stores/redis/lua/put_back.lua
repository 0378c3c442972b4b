-- Arguments: shift, then of each job: id, element, score, unique key or nothing, how long to keep it.
for at = 2, #ARGV, 5 do
  local id, value, score, key, keep = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  call('HSET', queue.hash, id, value)
  call('ZADD', queue.index, score, id)
  if key ~= '' then
    local holder = match(call('HGET', queue.unique, key) or '', '^%d+ %d+ (.*)$')
    if not holder or holder == id then
      call('HSET', queue.unique, key, keep .. ' 0 ' .. id)
      call('HSET', queue.ids, id, key)
      call('ZREM', queue.ends, key)
    end
  end
end
add_to_counter(queue, 'get', -(#ARGV - 1) / 5)
return 1
