-- Arguments: shift, then ids. Removes jobs that are not reserved. Returns 1 or 0 for each.
local now = clock()
local done = {}
for at = 2, #ARGV do
  local id = ARGV[at]
  local value = call('HGET', queue.hash, id)
  local is_free = false
  if value then
    local _, reserved = state(value)
    is_free = not reserved or (tonumber(call('ZSCORE', queue.index, id)) or 0) <= now
  end
  if is_free then
    end_jobs(queue, {id}, now)
  end
  done[#done + 1] = is_free and 1 or 0
end
return done
