-- Functions that are compiled, become hot and are flushed, in generations. Prints of each generation its name, begin and end.
--
--   luajit flushes.lua GENERATIONS

local now = dofile((arg[0]:gsub("runtimes/flushes%.lua$", "luajit/clock.lua")))

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
