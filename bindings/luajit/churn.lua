-- Code that comes and goes: many small functions are made, become hot, are compiled and thrown away, and several times
-- all machine code is flushed.
--
--   luajit churn.lua [FLUSHES [FUNCTIONS [TURNS]]]
--
-- Prints a checksum. With `require "jitsym"` loaded before, the counters are to be had from its stats().

local flushes = tonumber(arg and arg[1]) or 5
local functions = tonumber(arg and arg[2]) or 400
local turns = tonumber(arg and arg[3]) or 2000

local template = [[
  local limit = ...
  local sum = 0
  for i = 1, limit do
    if i %% %d == 0 then
      sum = sum + i * %d
    else
      sum = sum + 1
    end
  end
  return sum
]]

local checksum = 0
for round = 1, flushes do
  for i = 1, functions do
    local text = string.format(template, i % 7 + 2, i + round)
    local made = assert(loadstring(text, string.format("@churn_%d_%d.lua", round, i)))
    checksum = (checksum + made(turns)) % 1000003
  end
  jit.flush()
end
io.write(string.format("churn: %d functions, checksum %d\n", flushes * functions, checksum))
