-- KEYS: the counter of jobs. ARGV: queues. Returns for each for how long the list that comes next has been ready, in
-- milliseconds, or -1.
local now = now_ms()
local answer = {}
for _, q in ipairs(ARGV) do
  local kind, _, since = oldest(q, now)
  answer[#answer + 1] = kind and math.max(now - since, 0) or -1
end
return answer
