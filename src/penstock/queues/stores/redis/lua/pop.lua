-- Arguments: shift, count. Returns two lists: id, element and score of each; and, if there are unique keys, the key of
-- each and how long to keep it, which `put_back` needs.
local now = clock()
local jobs, ids, keys = {}, {}, {}
ready_jobs(tonumber(ARGV[2]), now, function(id, value, tries, reserved, before)
  if reserved then
    value = with_state(value, before, (after_expiry(id, tries)), 'false')
  end
  local n = #ids
  jobs[3 * n + 1], jobs[3 * n + 2] = id, value
  ids[n + 1] = id
end)
if #ids > 0 then
  for n, score in ipairs(call('ZMSCORE', queue.index, unpack(ids))) do
    jobs[3 * n] = score
  end
  call('ZREM', queue.index, unpack(ids))
  call('HDEL', queue.hash, unpack(ids))
  add_to_counter(queue, 'get', #ids)
  if has_unique(queue) then
    for n, id in ipairs(ids) do
      local key, keep = end_unique(queue, id, now)
      keys[2 * n - 1], keys[2 * n] = key or '', keep or ''
    end
  end
end
return {jobs, keys}
