-- Keys: those of the source, then those of the target. Arguments: shift, channel of the target or nothing, counter of
-- the source to add to or nothing, then of each: id and token in the source, an empty token for a job that waits, and
-- the six fields of the new job. Returns 1 or 0 for each.
local function move()
  allow_when_full()
  local now = clock()
  local target = queue_at(9)
  local first = ARGV[2] ~= '' and first_score(target)
  local done, moved, earliest = {}, 0, nil
  for at = 4, #ARGV, 8 do
    local id, token = ARGV[at], ARGV[at + 1]
    local may_go = may_move(id, token)
    done[#done + 1] = may_go and 1 or 0
    if may_go then
      moved = moved + 1
      end_jobs(queue, {id}, now)
      local mature, new_value, new_id, time = new_job(target, at + 2, 6, now)
      if new_value then
        call('HSET', target.hash, new_id, new_value)
        call('ZADD', target.index, time, new_id)
        earliest = (not earliest or mature < earliest) and mature or earliest
      end
    end
  end
  if ARGV[3] ~= '' then
    add_to_counter(queue, ARGV[3], moved)
  end
  add_to_counter(target, 'put', moved)
  send_signal(target, ARGV[2], first or nil, earliest, now)
  return done
end
