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
  local key, ready
  if delay == 0 then
    key = P .. 'r:' .. q
  else
    ready = ready_ms(now, delay)
    key = P .. 'b:' .. text(ready) .. ':' .. q
  end
  local left, length = n, 0
  while left > 0 do
    local records, some = {}, math.min(left, 4000)
    for one = 1, some do
      number = number + 1
      records[one] = flags .. struct.pack('>I6I6', published, shard * SEQUENCES + number % SEQUENCES) .. coded .. ARGV[at]
      at = at + 1
    end
    length = redis.call('RPUSH', key, unpack(records))
    left = left - some
  end
  if not ready then
    count(q, 'n', n)
  else
    if length == n then redis.call('ZADD', P .. 'i:' .. q, text(ready), text(ready)) end
    -- A clock that has gone back: it was counted up to there before.
    local w = tonumber(redis.call('HGET', P .. 'm:' .. q, 'w') or '0')
    count(q, ready <= w and 'n' or 'd', n)
  end
  redis.call('SADD', P .. 'Q', q)
end
return { text(now), first }
