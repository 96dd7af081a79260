-- Calls that a script makes: from Lua, from C functions of Lua, in coroutines, after errors, deep, and for a known depth.
local function burn(n)
  local sum = 0
  for i = 1, n do sum = (sum * 31 + i) % 1000003 end
  return sum
end

local function middle(n) local sum = burn(n); return sum + 1 end
local function outer(n) local sum = middle(n); return sum + 2 end

local function deep(n) if n == 0 then return 0 end local rest = deep(n - 1); return rest + 1 end

local rounds = tonumber(arg[1]) or 3
local total = 0
for round = 1, rounds do
  total = total + outer(100000)
  local ok, message = pcall(function() local bad = burn(10); error("stop " .. bad) end)
  assert(not ok and message:find("stop"))
  local co = coroutine.wrap(function(n)
    for i = 1, n do
      local value = middle(i)
      coroutine.yield(value)
    end
    return -1
  end)
  for i = 1, 4 do total = total + co(3) end
  local words = {3, 1, 2}
  table.sort(words, function(a, b) local less = a < b; return less end)
  total = total + words[3] + select("#", ("x y z"):gsub("%a", function(c) return c .. c end))
end
local t = setmetatable({}, {__index = function(_, key) local value = key * 2; return value end})
print(total, deep(150000), t[21], #tostring(burn))
for i = 1, 2000 do load("local x = ... ; return x + " .. i)(i) end
collectgarbage()
print(select(2, pcall(deep, 1e9)))
