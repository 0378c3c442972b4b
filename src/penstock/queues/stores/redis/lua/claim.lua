-- Arguments: shift, the claim's key, lease in ms, how many, 1 to add to a claim that is there, 0 to begin one.
-- Gives 1 if this was so, and what `reserve` gives, then id and element of each; 0 if there is a claim already, or none to add
-- to. Without any job, no claim is begun. Nothing is added to a claim that somebody has asked for again: who was given its
-- jobs as all there are will end it as a whole.
go_on_when_full()
local size = claim_size()
if (size ~= nil) ~= (ARGV[5] == '1') or (size and call('HEXISTS', claim, 'whole') == 1) then
  return {0}
end
size = size or 0
local jobs = {1, '', {}}
jobs[2], jobs[3] = reserve(tonumber(ARGV[4]), tonumber(ARGV[3]), nil, clock(), jobs)
local numbers, claimed = {}, {}
for at = 4, #jobs, 2 do
  local tries = state(jobs[at + 1])
  size = size + 1
  numbers[at - 3], numbers[at - 2] = size, jobs[at]
  claimed[at - 3], claimed[at - 2] = jobs[at], jobs[2] .. ':' .. tries .. ' ' .. claim_key
end
if #claimed > 0 then
  call('HSET', claim, 'n', size, unpack(numbers))
  call('HSET', queue.claimed, unpack(claimed))
end
return jobs
