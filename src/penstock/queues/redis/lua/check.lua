-- Arguments: shift, then id and token (nothing: it waits) of each. Gives 1 for each that may be moved, else 0.
local done = {}
for at = 2, #ARGV, 2 do
  done[#done + 1] = may_move(ARGV[at], ARGV[at + 1]) and 1 or 0
end
return done
