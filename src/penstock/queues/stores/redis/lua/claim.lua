-- Arguments: shift, the claim's key, lease in ms, count, 1 to add to an existing claim, 0 to make a new one. Returns 1,
-- what `reserve` returns, then id and element of each job; or 0 if a new claim exists already or an existing one
-- doesn't. Without jobs no claim is made. Nothing is added to a claim that was renewed: the one who renewed it got all
-- its jobs, and will end them as a whole.
allow_when_full()
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
