-- KEYS: the counter of jobs. ARGV: the bytes after which no more is taken, the number of entries that are looked at at
-- most; then queue, count and ttr in milliseconds of each take.
local now = now_ms()
local bytes_max, looked_max = tonumber(ARGV[1]), tonumber(ARGV[2])

local function take(q, most, ttr)
  local w = advance(q, now)
  local taken, leases, rows, over, looked, bytes = {}, {}, {}, 0, 0, 0
  local cut = 0
  local function lease(id, expires, tries, record)
    local value = held('L', expires, tries - 1, record)
    taken[#taken + 1] = value
    rows[#rows + 1] = id
    rows[#rows + 1] = value
    leases[#leases + 1] = text(now + ttr)
    leases[#leases + 1] = id .. q
    bytes = bytes + #record
  end
  while #taken < most do
    if looked >= looked_max or bytes > bytes_max then
      if #taken == 0 then cut = 1 end
      break
    end
    local kind, key, since = oldest(q, w)
    if not kind then break end
    -- Bodies may be long: no more than a few are taken before they are counted.
    local some = math.min(most - #taken, bytes > 65536 and 1 or 16, looked_max - looked)
    if bytes == 0 and kind ~= 'q' then
      some = math.min(most - #taken, looked_max - looked)
      local head = redis.call('LINDEX', key, 0)
      if #head * some > bytes_max then some = math.max(1, math.floor(bytes_max / #head)) end
    end
    for _, entry in ipairs(pop(kind, key, since, q, some)) do
      looked = looked + 1
      if kind == 'q' then
        local id = string.sub(entry, 7)
        local value = redis.call('HGET', P .. 'j:' .. q, id)
        if value and string.sub(value, 1, 1) == 'R' then
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
    end
  end
  if #taken > 0 then
    redis.call('HSET', P .. 'j:' .. q, unpack(rows))
    redis.call('ZADD', P .. 'L', unpack(leases))
  end
  count(q, 'n', -(#taken + over))
  return { tonumber(redis.call('HGET', P .. 'm:' .. q, 'n') or '0'), cut, taken }
end

local answer = { text(now) }
for at = 3, #ARGV, 3 do
  answer[#answer + 1] = take(ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]))
end
return answer
