-- The Mandelbrot set: one tight floating-point loop inside two others.
--
--   luajit mandelbrot.lua [SIZE]
--
-- Prints how many points of a SIZE x SIZE grid stay bounded, and a checksum over the iteration counts of the others.

local size = tonumber(arg and arg[1]) or 3200
local limit = 100

-- Iterations until the point leaves the circle of radius 2; nil if it did not.
local function escape(cr, ci)
  local zr, zi = 0, 0
  for i = 1, limit do
    local rr, ii = zr * zr, zi * zi
    if rr + ii > 4 then
      return i
    end
    zi = 2 * zr * zi + ci
    zr = rr - ii + cr
  end
end

local inside, checksum = 0, 0
for y = 0, size - 1 do
  local ci = 2 * y / size - 1
  for x = 0, size - 1 do
    local count = escape(3 * x / size - 2, ci)
    if count then
      checksum = (checksum * 31 + count) % 1000003
    else
      inside = inside + 1
    end
  end
end
io.write(string.format("mandelbrot %d: inside %d, checksum %d\n", size, inside, checksum))
