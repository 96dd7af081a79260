-- Functions that are compiled, become hot and are flushed, in generations. Prints of each generation its name, begin and end.
--
--   luajit flushes.lua GENERATIONS

local ffi = require("ffi")
ffi.cdef("int clock_gettime(int clock, long now[2]);")
local function now()
  local time = ffi.new("long[2]")
  ffi.C.clock_gettime(1, time)
  return tonumber(time[0]) + tonumber(time[1]) / 1e9
end

local template = [[
  local sum = 0
  for i = 1, 100000 do
    sum = (sum * %d + i) %% 1000003
  end
  return sum
]]

for generation = 1, tonumber(arg[1]) do
  local name, from = string.format("generation_%d", generation), now()
  for number = 1, 8 do
    local made = assert(loadstring(string.format(template, number + generation), "@" .. name .. ".lua"))
    assert(made() == made())
  end
  jit.flush()
  io.write(string.format("%s %.6f %.6f\n", name, from, now()))
end
