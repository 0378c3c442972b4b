-- Arguments: shift, then id, token and lease in ms of each, and whether work on it has begun: 1 or 0. Returns the new
-- token of each, or nothing.
allow_when_full()
local now = clock()
local has_claims = call('EXISTS', queue.claimed) == 1
local scores, tokens = {}, {}
local count = each_lease(2, 4, function(n, id, _, tries, _, at, score)
  local unbegun = ARGV[at + 3] == '1' and 0 or unbegun_leases(score)
  local until_ms = renewed_end(now, ARGV[at + 2] - (unbegun > 0 and 1 or 0), score)
  scores[#scores + 1] = lease_end(until_ms, unbegun)
  scores[#scores + 1] = id
  tokens[n] = text(until_ms) .. ':' .. tries
  if has_claims then
    -- The job stays under its claim.
    local token, key = match(call('HGET', queue.claimed, id) or '', '^(%S+) (.*)$')
    if token == ARGV[at + 1] then
      call('HSET', queue.claimed, id, tokens[n] .. ' ' .. key)
    end
  end
end)
for n = 1, count do
  tokens[n] = tokens[n] or ''
end
if #scores > 0 then
  call('ZADD', queue.index, unpack(scores))
end
return tokens
