-- Ground truth for source lines and call stacks: each phase burns its time in one line, in another kind of trace. That is the
-- line that ends with `hot: PHASE`; its square roots wait for each other. A sample may point after the instruction that has
-- taken long, so most end with quick ones. From when to when each phase went is printed.
--
--   luajit hot.lua SECONDS PHASES...
local seconds = tonumber(arg[1])
local sqrt, clock = math.sqrt, os.clock
local inlined = dofile((arg[0]:gsub("hot%.lua$", "inlined.lua")))

-- Goes on until the time is over; `turn` is to take some milliseconds.
local function burn(turn)
  local from, sum = clock(), 0
  repeat
    sum = sum + turn()
  until clock() - from >= seconds
  return sum
end

local phases = {}

-- A loop alone.
phases.loop = function()
  local x, odd = 1, 0
  for i = 1, 20000 do
    odd = odd + i % 2
    x = sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(x + 2) + 3) + 4) + 5) + 6) + 7) + 8) + 9) -- hot: loop
    if odd < 0 then
      x = 1
    end
  end
  return x
end

-- A function of another file, inlined into a loop of this one.
phases.inlined = function()
  local x = 1
  for i = 1, 20000 do
    x = inlined.step(x, i)
  end
  return x
end

-- Half of the turns leave the loop for a side trace; what is on it takes long, the rest does not.
phases.side = function()
  local x, even = 1, 0
  for i = 1, 20000 do
    if i % 2 == 0 then
      even = even + 1
    else
      x = sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(x + 2) + 3) + 4) + 5) + 6) + 7) + 8) + 9) * 0.5 + 1 -- hot: side
    end
  end
  return x + even
end

-- A side trace of a function that is inlined, in another file.
phases.side_inlined = function()
  local x = 1
  for i = 1, 20000 do
    x = inlined.sometimes(x, i)
  end
  return x
end

-- More values live at a time than there are registers: a trace that takes stack of its own, and side traces of it.
phases.spill = function()
  local x = 1
  for i = 1, 20000 do
    local a, b, c, d, e, f, g, h = i * 1.5, i * 2.5, i * 3.5, i * 4.5, i * 5.5, i * 6.5, i * 7.5, i * 8.5
    local k, l, m, n, o, p, q, r = i + 1.5, i + 2.5, i + 3.5, i + 4.5, i + 5.5, i + 6.5, i + 7.5, i + 8.5
    x = sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(x + a) + b) + c) + d) + e) + f) + g) + h) * 0.5 + 1 -- hot: spill
    if i % 2 == 0 then
      x = x + k + l + m + n
    end
    x = x + (((a + r) + (b + q)) + ((c + p) + (d + o))) + (((e + n) + (f + m)) + ((g + l) + (h + k)))
  end
  return x
end

-- A trace that is no loop, but calls itself.
local function descend(x, depth)
  if depth == 0 then
    return x
  end
  x = sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(x + 2) + 3) + 4) + 5) + 6) + 7) + 8) + 9) * 0.5 + 1 -- hot: recursion
  return descend(x, depth - 1) + 1
end
phases.recursion = function()
  local x = 1
  for _ = 1, 300 do
    x = descend(x, 60)
  end
  return x
end

-- Coroutines that live at the same time, each with a loop between two yields. (What yields is not compiled.)
phases.coroutines = function()
  local running, sum = {}, 0
  for number = 1, 4 do
    running[number] = coroutine.wrap(function()
      local x = number
      while true do
        for i = 1, 1000 do
          x = sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(x + i) + 3) + 4) + 5) + 6) + 7) + 8) + 9) * 0.5 + 1 -- hot: coroutines
        end
        coroutine.yield(x)
      end
    end)
  end
  for _ = 1, 5 do
    for number = 1, 4 do
      sum = sum + running[number]()
    end
  end
  return sum
end

-- A C function that calls back into Lua, where a loop is compiled. (What calls such a function must not be.)
local ffi = require("ffi")
ffi.cdef("void qsort(void *base, size_t count, size_t size, int (*order)(const int *, const int *));")
local numbers = ffi.new("int[8]")
local order = ffi.cast("int (*)(const int *, const int *)", function(a, b)
  local x = a[0]
  for i = 1, 300 do
    x = sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(x + i) + 3) + 4) + 5) + 6) + 7) + 8) + 9) * 0.5 + 1 -- hot: callback
  end
  return x > 0 and a[0] - b[0] or 0
end)
local function sort()
  ffi.C.qsort(numbers, 8, 4, order)
end
jit.off(sort)
phases.callback = function()
  for i = 0, 7 do
    numbers[i] = (i * 5) % 8
  end
  sort()
  return numbers[7]
end

-- A C function of the old kind, to which the compiler leaves the trace; what follows is another one that is stitched to it.
phases.stitched = function()
  local x = 1
  for i = 1, 500 do
    local text = string.format("%d", i):reverse():gsub("1", "2")
    for _ = 1, 40 do
      x = sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(x + #text) + 3) + 4) + 5) + 6) + 7) + 8) + 9) * 0.5 + 1 -- hot: stitched
    end
  end
  return x
end

local now = dofile((arg[0]:gsub("hot%.lua$", "clock.lua")))

for i = 2, #arg do
  local from = now()
  local sum = burn(assert(phases[arg[i]], arg[i]))
  assert(sum == sum)
  io.write(string.format("%s %.6f %.6f\n", arg[i], from, now()))
end
