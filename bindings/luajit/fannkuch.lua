-- Pancake flipping over all permutations: integer work on small tables with branches that are hard to predict.
--
--   luajit fannkuch.lua [N [ROUNDS]]
--
-- For each permutation of 1..N the first element says how many elements to reverse, until it is 1. Prints the largest
-- number of reversals that any permutation needs, and the sum over all with alternating signs.

local n = tonumber(arg and arg[1]) or 10
local rounds = tonumber(arg and arg[2]) or 4

-- Number of reversals until the first element is 1. `work` is a copy that may be spoiled.
local function flips(work)
  local count = 0
  local first = work[1]
  while first ~= 1 do
    local low, high = 2, first - 1
    while low < high do
      work[low], work[high] = work[high], work[low]
      low, high = low + 1, high - 1
    end
    -- The first element goes to its place; what was there comes to the front.
    work[first], first = first, work[first]
    count = count + 1
  end
  return count
end

-- Goes through the permutations in an order in which even and odd ones alternate: each is made from the one before by
-- one exchange (Heap's algorithm, without recursion).
local function run(size)
  local perm, work, state = {}, {}, {}
  for i = 1, size do
    perm[i], state[i] = i, 1
  end
  local most, sum, sign = 0, 0, 1

  local function visit()
    for i = 1, size do
      work[i] = perm[i]
    end
    local count = flips(work)
    if count > most then
      most = count
    end
    sum = sum + sign * count
    sign = -sign
  end

  visit()
  local i = 2
  while i <= size do
    if state[i] < i then
      local other = i % 2 == 1 and 1 or state[i]
      perm[other], perm[i] = perm[i], perm[other]
      visit()
      state[i] = state[i] + 1
      i = 2
    else
      state[i] = 1
      i = i + 1
    end
  end
  return most, sum
end

local most, sum
for _ = 1, rounds do
  most, sum = run(n)
end
io.write(string.format("fannkuch %d: most %d, sum %d\n", n, most, sum))
