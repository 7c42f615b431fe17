-- KEYS: the counter of jobs. ARGV: 1 where doubtful jobs are published; for each far job its queue, its id, the end of its ttl
-- (0: never), its tries, its record. Returns for each -1 where it is ready now, -2 where it was published before, deleted, or is
-- over, -3 where it comes so late that its deletion may be forgotten, and else in how many milliseconds it is due.
local STORED, OVER, DOUBTFUL = -1, -2, -3
local now = now_ms()
-- The last hour of which any deletion was forgotten.
local forgotten = ARGV[1] == '1' and -1 or tonumber(redis.call('GET', P .. 'f') or '-1')

-- All looks come before the first write.
local answer, seen = {}, {}
for at = 2, #ARGV, 5 do
  local id, expires = ARGV[at + 1], tonumber(ARGV[at + 2])
  local mark, ready = id .. ARGV[at], ready_ms(times(id, 1))
  -- Processes of the release before remember deletions among the marks alone.
  local removed = redis.call('ZSCORE', P .. 'v', mark)
    or redis.call('SISMEMBER', marks(removal_hour(id), mark), mark) == 1
  -- It may be there for longer than its mark, in somebody's hands.
  local is_there = redis.call('HEXISTS', P .. 'j:' .. ARGV[at], id) == 1
  local fate = STORED
  if seen[mark] or removed or is_there or is_known(now, mark) then
    fate = OVER
  elseif ready > now then
    fate = ready - now
  elseif expires ~= 0 and expires <= now then
    fate = OVER
  elseif removal_hour(id) <= forgotten then
    fate = DOUBTFUL
  end
  seen[mark] = true
  answer[#answer + 1] = fate
end

for nth, fate in ipairs(answer) do
  if fate == STORED then
    local at = 5 * nth - 3
    local q, id, expires, tries, record = unpack(ARGV, at, at + 4)
    redis.call('HSET', P .. 'j:' .. q, id, held('R', tonumber(expires), tonumber(tries), record))
    redis.call('RPUSH', P .. 'q:' .. q, struct.pack('>I6', ready_ms(times(id, 1))) .. id)
    count(q, 'n', 1)
    redis.call('SADD', P .. 'Q', q)
    note_mark(math.floor(now / HOUR), id .. q)
  end
end
return answer
