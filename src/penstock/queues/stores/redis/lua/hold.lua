-- Arguments: shift, lease in ms, then id and token of each, an empty token for a job that waits. Holds jobs that move
-- to another slot: a job that waits is reserved. Returns the token of each, or nothing if the job may not be moved.
allow_when_full()
local now = clock()
local tokens = {}
for at = 3, #ARGV, 2 do
  local id, token = ARGV[at], ARGV[at + 1]
  if not may_move(id, token) then
    token = ''
  elseif token == '' then
    local value = call('HGET', queue.hash, id)
    local tries, _, before = state(value)
    local until_ms = text(renewed_end(now, ARGV[2], call('ZSCORE', queue.index, id)))
    call('HSET', queue.hash, id, with_state(value, before, tries, 'true'))
    call('ZADD', queue.index, until_ms, id)
    token = until_ms .. ':' .. tries
  end
  tokens[#tokens + 1] = token
end
return tokens
