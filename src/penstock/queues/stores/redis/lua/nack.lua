-- Arguments: shift, channel or nothing, tries to add, then id, token and delay of each. Returns 1 or 0 for each.
allow_when_full()
local now = clock()
local first = ARGV[2] ~= '' and first_score(queue)
local scores, values, done, seen, earliest = {}, {}, {}, {}, nil
local count = each_lease(4, 3, function(n, id, value, tries, before, at)
  if seen[id] then
    return
  end
  seen[id] = true
  local mature = in_range(now + ARGV[at + 2])
  local size = #values
  values[size + 1], values[size + 2] = id, with_state(value, before, text(tries + ARGV[3]), 'false')
  scores[size + 1], scores[size + 2] = text(mature), id
  earliest = (not earliest or mature < earliest) and mature or earliest
  done[n] = 1
end)
if #values > 0 then
  call('HSET', queue.hash, unpack(values))
  call('ZADD', queue.index, unpack(scores))
end
if ARGV[3] == '0' then
  add_to_counter(queue, 'reserve', -#values / 2)  -- a reserve that is undone
else
  add_to_counter(queue, 'rollback', #values / 2)
end
send_signal(queue, ARGV[2], first or nil, earliest, now)
return outcomes(done, count)
