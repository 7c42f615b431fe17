-- KEYS: the counter of jobs. ARGV: for each job its mark, its queue, 1 where its id is versioned, its delay, the delay as an id
-- has it, the flags, and what follows the id. Returns the clock, and the number of each job, or 0 where it was published before.
local HOUR = 3600000
local now = now_ms()
local hour = math.floor(now / HOUR)
local shard = tonumber(string.match(P, ':(%x+)}'), 16)
local function marks(at) return P .. 'o:' .. text(at) end

-- All looks come before the first write.
local seen, is_new = {}, {}
for at = 1, #ARGV, 7 do
  local mark = ARGV[at]
  local known = seen[mark] and 1 or 0
  seen[mark] = true
  -- The next hour's, too: the clock may have gone back.
  for near = hour - 1, hour + 1 do known = known + redis.call('SISMEMBER', marks(near), mark) end
  is_new[at] = known == 0
end

local answer = { text(now) }
for at = 1, #ARGV, 7 do
  local number = 0
  if is_new[at] then
    number = redis.call('INCR', KEYS[1])
    local published = now + (ARGV[at + 2] == '1' and VERSIONED or 0)
    local record = head(ARGV[at + 5], published, shard, number, ARGV[at + 4]) .. ARGV[at + 6]
    enqueue(ARGV[at + 1], tonumber(ARGV[at + 3]), now, { record })
    redis.call('SADD', marks(hour), ARGV[at])
    -- Kept for an hour after the last one.
    redis.call('PEXPIREAT', marks(hour), text((hour + 2) * HOUR))
  end
  answer[#answer + 1] = text(number)
end
return answer
