-- KEYS: the counter of jobs. ARGV: for each job its mark, its queue, 1 where its id is versioned, its delay, the delay as an id
-- has it, the flags, and what follows the id. Returns the clock, and the number of each job, or 0 where it was published before.
local now = now_ms()
local hour = math.floor(now / HOUR)
local shard = tonumber(string.match(P, ':(%x+)}'), 16)

-- All looks come before the first write.
local seen, is_new = {}, {}
for at = 1, #ARGV, 7 do
  local mark = ARGV[at]
  is_new[at] = not seen[mark] and not is_known(now, mark)
  seen[mark] = true
end

local answer = { text(now) }
for at = 1, #ARGV, 7 do
  local number = 0
  if is_new[at] then
    number = redis.call('INCR', KEYS[1])
    local published = now + (ARGV[at + 2] == '1' and VERSIONED or 0)
    local record = head(ARGV[at + 5], published, shard, number, ARGV[at + 4]) .. ARGV[at + 6]
    enqueue(ARGV[at + 1], tonumber(ARGV[at + 3]), now, { record })
    note_mark(hour, ARGV[at])
  end
  answer[#answer + 1] = text(number)
end
return answer
