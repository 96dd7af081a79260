-- Calls a C function from a trace. The library that has it is the argument.
local ffi = require("ffi")
ffi.cdef("int visit(int);")
local library = ffi.load(arg[1])

local function visit(number)
  return library.visit(number) -- inlined
end

local sum = 0
for number = 1, 1000 do -- the trace's name
  sum = sum + visit(number)
end
print(sum)
