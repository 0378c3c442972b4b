-- Arguments: shift, channel or nothing, fields of a job (2, 4 or 6: see new_job), then the jobs. Returns their ids if
-- they have unique keys; else nothing, since each has the id that was sent.
local now = clock()
local fields = tonumber(ARGV[3])
local first = ARGV[2] ~= '' and first_score(queue)
local ids, scores, values, added, earliest = {}, {}, {}, 0, nil

local function write()
  if #values > 0 then
    call('HSET', queue.hash, unpack(values))
    call('ZADD', queue.index, unpack(scores))
    scores, values = {}, {}
  end
end

for at = 4, #ARGV, fields do
  local mature, value, id, time = new_job(queue, at, fields, now)
  ids[#ids + 1] = id
  if value then
    local n = #values
    added = added + 1
    values[n + 1], values[n + 2] = id, value
    scores[n + 1], scores[n + 2] = time, id
    earliest = (not earliest or mature < earliest) and mature or earliest
    if fields > 4 then
      write()  -- the next one may have the same key
    end
  end
end
write()
add_to_counter(queue, 'put', added)
send_signal(queue, ARGV[2], first or nil, earliest, now)
return fields > 4 and ids or {}
