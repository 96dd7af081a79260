-- The other file of hot.lua.
local sqrt = math.sqrt
local M = {}

function M.step(x, i)
  if i < 0 then
    return 0
  end
  x = sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(x + 2) + 3) + 4) + 5) + 6) + 7) + 8) + 9) * 0.5 + 1 -- hot: inlined
  x = x + 1
  return x
end

function M.sometimes(x, i)
  if i % 2 == 0 then
    return x
  end
  -- Only here time is spent.
  return sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(sqrt(x + 2) + 3) + 4) + 5) + 6) + 7) + 8) + 9) * 0.5 + 1 -- hot: side_inlined
end

return M
