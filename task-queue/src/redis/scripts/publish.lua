-- KEYS: the counter of jobs. ARGV: the number of all jobs; then for each group its queue, 1 where its ids are versioned,
-- its delay, the delay as an id has it, the flags, the number of jobs, and what follows the id of each.
local now = now_ms()
local shard = tonumber(string.match(P, ':(%x+)}'), 16)
local total = tonumber(ARGV[1])
local number = redis.call('INCRBY', KEYS[1], total) - total
local first = text(number)
local at = 2
while at <= #ARGV do
  local q, delay, coded, flags, n = ARGV[at], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4], tonumber(ARGV[at + 5])
  local published = now + (ARGV[at + 1] == '1' and VERSIONED or 0)
  at = at + 6
  local left = n
  while left > 0 do
    local records, some = {}, math.min(left, 4000)
    for one = 1, some do
      number = number + 1
      records[one] = head(flags, published, shard, number, coded) .. ARGV[at]
      at = at + 1
    end
    enqueue(q, delay, now, records)
    left = left - some
  end
end
return { text(now), first }
