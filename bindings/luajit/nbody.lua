-- The sun and the four giant planets under gravity: arithmetic on numbers in tables.
--
--   luajit nbody.lua [STEPS]
--
-- Prints the energy of the system before and after. It is conserved up to the error of the integrator.

local steps = tonumber(arg and arg[1]) or 20000000
local dt = 0.01

local DAYS = 365.24                                 -- in a year, which is the unit of time
local SUN = 4 * math.pi * math.pi                   -- solar mass in these units

local function body(mass, x, y, z, vx, vy, vz)
  return { mass = mass * SUN, x = x, y = y, z = z, vx = vx * DAYS, vy = vy * DAYS, vz = vz * DAYS }
end

-- Position in astronomical units, velocity in those per day, mass in solar masses.
local bodies = {
  body(1, 0, 0, 0, 0, 0, 0),
  body(9.5479e-4, 4.84143, -1.16032, -0.10362, 1.66008e-3, 7.69901e-3, -6.90460e-5),
  body(2.8589e-4, 8.34337, 4.12480, -0.40352, -2.76743e-3, 4.99853e-3, 2.30417e-5),
  body(4.3662e-5, 12.89437, -15.11115, -0.22331, 2.96460e-3, 2.37847e-3, -2.96590e-5),
  body(5.1514e-5, 15.37970, -25.91931, 0.17926, 2.68068e-3, 1.62824e-3, -9.51592e-5),
}

-- Gives the sun the momentum that makes the whole system stay where it is.
local function rest(list)
  local px, py, pz = 0, 0, 0
  for _, b in ipairs(list) do
    px, py, pz = px + b.vx * b.mass, py + b.vy * b.mass, pz + b.vz * b.mass
  end
  local sun = list[1]
  sun.vx, sun.vy, sun.vz = sun.vx - px / sun.mass, sun.vy - py / sun.mass, sun.vz - pz / sun.mass
end

local function energy(list)
  local sum = 0
  for i, b in ipairs(list) do
    sum = sum + 0.5 * b.mass * (b.vx ^ 2 + b.vy ^ 2 + b.vz ^ 2)
    for j = i + 1, #list do
      local c = list[j]
      local dx, dy, dz = b.x - c.x, b.y - c.y, b.z - c.z
      sum = sum - b.mass * c.mass / math.sqrt(dx * dx + dy * dy + dz * dz)
    end
  end
  return sum
end

-- One step: all velocities change by the pull of all others, then all bodies move.
local function step(list, n)
  for i = 1, n do
    local b = list[i]
    local bx, by, bz, bm = b.x, b.y, b.z, b.mass
    local vx, vy, vz = b.vx, b.vy, b.vz
    for j = i + 1, n do
      local c = list[j]
      local dx, dy, dz = bx - c.x, by - c.y, bz - c.z
      local square = dx * dx + dy * dy + dz * dz
      local pull = dt / (square * math.sqrt(square))
      local cm = c.mass * pull
      vx = vx - dx * cm
      vy = vy - dy * cm
      vz = vz - dz * cm
      bm = b.mass * pull
      c.vx = c.vx + dx * bm
      c.vy = c.vy + dy * bm
      c.vz = c.vz + dz * bm
    end
    b.vx, b.vy, b.vz = vx, vy, vz
    b.x, b.y, b.z = bx + dt * vx, by + dt * vy, bz + dt * vz
  end
end

rest(bodies)
io.write(string.format("energy %.9f\n", energy(bodies)))
for _ = 1, steps do
  step(bodies, #bodies)
end
io.write(string.format("energy %.9f\n", energy(bodies)))
