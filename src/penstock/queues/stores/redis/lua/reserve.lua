-- Arguments: shift, count, lease in ms, on how many of them work begins at once, or nothing for all. Returns the end of
-- the leases and the jobs with an expired lease (see `reserve` in ready_jobs.lua), then id and element of each job.
allow_when_full()
local jobs = {'', {}}
jobs[1], jobs[2] = reserve(tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), clock(), jobs)
return jobs
