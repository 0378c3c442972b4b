-- Arguments: shift, lease in ms, then id and token (nothing: it waits) of each. Makes sure of jobs that go to another slot:
-- one with a token is its worker's, one without is leased if nobody has reserved it. Gives the token of each, or nothing.
go_on_when_full()
local now = clock()
local tokens = {}
for at = 3, #ARGV, 2 do
  local id, token = ARGV[at], ARGV[at + 1]
  if not may_move(id, token) then
    token = ''
  elseif token == '' then
    local value = call('HGET', queue.hash, id)
    local tries, _, before = state(value)
    local until_ms = text(new_end(now, ARGV[2], call('ZSCORE', queue.index, id)))
    call('HSET', queue.hash, id, with_state(value, before, tries, 'true'))
    call('ZADD', queue.index, until_ms, id)
    token = until_ms .. ':' .. tries
  end
  tokens[#tokens + 1] = token
end
return tokens
