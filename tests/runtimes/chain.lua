-- Burns in a function whose callers are known, for so many seconds of processor time; `string.rep` is called there too.
local function burn(n)
  local sum = 0
  for i = 1, n do sum = (sum * 31 + i) % 1000003 end
  return string.rep("x", 1 + sum % 2)
end
local function middle(n) local result = burn(n); return result end
local function outer(n) local result = middle(n); return result end

local seconds = tonumber(arg[1])
repeat local result = outer(1000) until os.clock() >= seconds
print("ok")
