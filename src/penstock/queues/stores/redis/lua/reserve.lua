-- Arguments: shift, how many, lease in ms, how many of them begin at once or nothing for all. Gives the leases' end and
-- those that come back (see `reserve`), then id and element of each.
go_on_when_full()
local jobs = {'', {}}
jobs[1], jobs[2] = reserve(tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), clock(), jobs)
return jobs
