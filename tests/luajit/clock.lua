-- Returns a function that returns the seconds of the clock that perf stamps samples with (`-k 1`).
local ffi = require("ffi")
ffi.cdef("int clock_gettime(int clock, long now[2]);")
return function()
  local time = ffi.new("long[2]")
  ffi.C.clock_gettime(1, time)
  return tonumber(time[0]) + tonumber(time[1]) / 1e9
end
