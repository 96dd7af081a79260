-- Text: building, scanning and hashing strings, a word count, a sort by a comparison function.
--
--   luajit strings.lua [ROUNDS]
--
-- Prints the most frequent words of a made-up text and a checksum.

local rounds = tonumber(arg and arg[1]) or 4000

-- A random number generator of our own, so that every run sees the same text.
local seed = 42
local function random(n)
  seed = (seed * 16807) % 2147483647
  return seed % n + 1
end

local syllables = { "ka", "lo", "mi", "ru", "se", "ta", "vo", "ni", "pe", "du" }

local function word()
  local parts = {}
  for i = 1, random(3) do
    parts[i] = syllables[random(#syllables)]
  end
  return table.concat(parts)
end

local function text(words)
  local out = {}
  for i = 1, words do
    out[i] = word()
  end
  return table.concat(out, " ")
end

-- Splits at blanks byte by byte: this is compiled, unlike the pattern functions of the library.
local function count_words(line, counts)
  local start = 1
  for i = 1, #line + 1 do
    if i > #line or line:byte(i) == 32 then
      local found = line:sub(start, i - 1)
      counts[found] = (counts[found] or 0) + 1
      start = i + 1
    end
  end
end

local function hash(line)
  local h = 5381
  for i = 1, #line do
    h = (h * 33 + line:byte(i)) % 4294967296
  end
  return h
end

local function reverse_words(line)
  local out = ""
  local start = 1
  for i = 1, math.min(#line, 400) do
    if line:byte(i) == 32 then
      out = line:sub(start, i) .. out
      start = i + 1
    end
  end
  return out
end

local counts, checksum = {}, 0
for _ = 1, rounds do
  local line = text(2000)
  count_words(line, counts)
  checksum = (checksum + hash(line) + hash(reverse_words(line):upper())) % 4294967296
end

local ranking = {}
for found, count in pairs(counts) do
  ranking[#ranking + 1] = { found, count }
end
table.sort(ranking, function(a, b)
  if a[2] ~= b[2] then
    return a[2] > b[2]
  end
  return a[1] < b[1]
end)
for i = 1, 3 do
  io.write(string.format("%-8s %d\n", ranking[i][1], ranking[i][2]))
end
io.write(string.format("words %d, checksum %d\n", #ranking, checksum))
