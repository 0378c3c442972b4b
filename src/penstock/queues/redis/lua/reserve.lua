-- Arguments: shift, how many, lease in ms. Gives the leases' end, then id and element of each.
go_on_when_full()
local jobs = {''}
jobs[1] = reserve(tonumber(ARGV[2]), tonumber(ARGV[3]), clock(), jobs)
return jobs
