-- Arguments: shift, then ids. Returns element and score of each that is reserved, else two empty texts.
local found = {}
for at = 2, #ARGV do
  local value = call('HGET', queue.hash, ARGV[at])
  local reserved
  if value then
    local _
    _, reserved = state(value)
  end
  local n = #found
  found[n + 1] = reserved and value or ''
  found[n + 2] = reserved and call('ZSCORE', queue.index, ARGV[at]) or ''
end
return found
