-- Calls a C function from a trace. The library that has it is the argument.
local ffi = require("ffi")
local jitsym = require("jitsym")
ffi.cdef("int visit(int);")
local library = ffi.load(arg[1])

local function visit(number)
  return library.visit(number) -- inlined
end

local function visits(from, to)
  local sum = 0
  for number = from, to do -- the trace's name
    sum = sum + visit(number)
  end
  return sum
end

visits(1, 400)
-- However slow the machine is, a debugger knows the trace then.
repeat until jitsym.flush()
visits(401, 1000)
