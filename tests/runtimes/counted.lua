-- Calls of many kinds, below a call of `pcall`. With an argument, prints for each instruction of Lua's virtual machine below
-- this call the line of the function that the interpreter says is current.
local function burn(n)
  local sum = 0
  for i = 1, n do sum = (sum * 31 + i) % 1000003 end
  return string.rep("x", 1 + sum % 2)
end
local function middle(n) local result = burn(n); return result end
local function outer(n) local result = middle(n); return result .. "y" end
local function fails(n) local result = burn(n); error(result) end
local function less(a, b) local is = a < b; return is end
local function deep(n) if n > 0 then local rest = deep(n - 1); return rest end return burn(3) .. "z" end
local index = setmetatable({}, {__index = function(_, key) local value = key * 2; return value end})
local function steps(n) for i = 1, n do coroutine.yield(middle(i) .. i) end end

local thread = coroutine.create(steps)
local function measured()
  local words = outer(6) .. deep(3) .. index[4]
  local ok = pcall(fails, 2)
  local list = {3, 1, 2}
  table.sort(list, less)
  local _, first = coroutine.resume(thread, 2)
  local _, second = coroutine.resume(thread)
  words = words .. first .. second .. (words:gsub("y", function(c) local twice = c .. c; return twice end))
  return words
end

local lines = {}
local function count()
  local line = debug.getinfo(2, "S").linedefined
  if line > 0 then lines[#lines + 1] = line end
end

if arg[1] then
  debug.sethook(thread, count, "", 1)
  debug.sethook(count, "", 1)
end
local ok, words = pcall(measured)
debug.sethook()
print(table.concat(lines, " "))
assert(ok and #words > 10, words)
