-- One hot function and another one that it calls, as traces.
local function area(radius)
  return radius * radius * 3
end

local sum = 0
for number = 1, 3000 do
  sum = sum + area(number) % 7
end
print(sum > 0)
