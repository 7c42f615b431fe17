-- KEYS: the counter of jobs. ARGV: the number of entries that are looked at at most; then queue, count and ttr in
-- milliseconds of each take. The bounds hold for all takes together: those that they leave nothing for are answered as
-- cut. Returns the clock; then for each take how many jobs are still ready, whether it was cut, what was taken, and how many
-- jobs had expired and are gone.
local now = now_ms()
local looked_max = tonumber(ARGV[1])
local looked, bytes = 0, 0

local function take(q, most, ttr)
  advance(q, now)
  local taken, leases, rows, over, cut = {}, {}, {}, 0, 0
  local step, longest = 4, 1
  local function lease(id, expires, tries, record)
    local value = held('L', expires, tries - 1, record)
    taken[#taken + 1] = value
    rows[#rows + 1] = id
    rows[#rows + 1] = value
    leases[#leases + 1] = text(now + ttr)
    leases[#leases + 1] = id .. q
  end
  while #taken < most do
    local kind, key, since = oldest(q, now)
    if not kind then break end
    if looked >= looked_max or bytes > BYTES_MAX then
      if #taken == 0 then cut = 1 end
      break
    end
    -- Nobody knows how long bodies are before they are popped: a few at first, and few where they have been long.
    local fitting = math.max(1, math.floor((BYTES_MAX - bytes) / longest))
    local some = math.min(most - #taken, looked_max - looked, step, fitting)
    step = math.min(2 * step, 16)
    for _, entry in ipairs(pop(kind, key, since, q, some)) do
      looked = looked + 1
      local length = #entry
      if kind == 'q' then
        local id = string.sub(entry, 7)
        local value = redis.call('HGET', P .. 'j:' .. q, id)
        if value and string.sub(value, 1, 1) == 'R' then
          length = #value
          local expires, tries = struct.unpack('>I6I2', value, 2)
          if expires ~= 0 and expires <= now then
            redis.call('HDEL', P .. 'j:' .. q, id)
            over = over + 1
          else
            lease(id, expires, tries, string.sub(value, 10))
          end
        end
      elseif string.sub(entry, 1, 1) ~= TOMB then
        local expires, tries = terms(entry)
        if expires ~= 0 and expires <= now then
          over = over + 1
        else
          lease(string.sub(entry, 2, 17), expires, tries, entry)
        end
      end
      bytes = bytes + length
      longest = math.max(longest, length)
    end
  end
  if #taken > 0 then
    redis.call('HSET', P .. 'j:' .. q, unpack(rows))
    redis.call('ZADD', P .. 'L', unpack(leases))
  end
  count(q, 'n', -(#taken + over))
  return { tonumber(redis.call('HGET', P .. 'm:' .. q, 'n') or '0'), cut, taken, over }
end

local answer = { text(now) }
for at = 2, #ARGV, 3 do
  answer[#answer + 1] = take(ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]))
end
return answer
