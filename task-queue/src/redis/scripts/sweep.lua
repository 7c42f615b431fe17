-- KEYS: the counter of jobs. ARGV: cursor, about how many queues, how many jobs of each at most. Returns where to go on,
-- how many jobs are gone, how many queues, marks and deletions of far jobs, and how many of these deletions are left.
local now = now_ms()
local page = redis.call('SSCAN', P .. 'Q', ARGV[1], 'COUNT', ARGV[2])
local expired, forgotten, bytes = 0, 0, 0

-- Whether the head of a list is of a job that is over.
local function is_over(kind, q, entry)
  if kind == 'q' then
    local id = string.sub(entry, 7)
    local value = redis.call('HGET', P .. 'j:' .. q, id)
    if not value or string.sub(value, 1, 1) ~= 'R' then return true, 0 end
    bytes = bytes + #value
    local expires = struct.unpack('>I6', value, 2)
    if expires == 0 or expires > now then return false end
    redis.call('HDEL', P .. 'j:' .. q, id)
    return true, 1
  end
  bytes = bytes + #entry
  if string.sub(entry, 1, 1) == TOMB then return true, 0 end
  local expires = terms(entry)
  return expires ~= 0 and expires <= now, 1
end

for _, q in ipairs(page[2]) do
  advance(q, now)
  local over = 0
  for _ = 1, tonumber(ARGV[3]) do
    local kind, key, since = oldest(q, now)
    if not kind or bytes > BYTES_MAX then break end
    local is_gone, counted = is_over(kind, q, redis.call('LINDEX', key, 0))
    if not is_gone then break end
    pop(kind, key, since, q, 1)
    over = over + counted
  end
  count(q, 'n', -over)
  expired = expired + over
  for _ = 1, tonumber(ARGV[3]) do
    local id = redis.call('LINDEX', P .. 'd:' .. q, 0)
    local value = id and redis.call('HGET', P .. 'j:' .. q, id)
    if not id or value and string.sub(value, 1, 1) == 'D' then break end
    redis.call('LPOP', P .. 'd:' .. q)
  end
  local kinds = { 'r:', 'q:', 'i:', 'j:' }
  local there = 0
  for _, kind in ipairs(kinds) do there = there + redis.call('EXISTS', P .. kind .. q) end
  if there == 0 then
    redis.call('DEL', P .. 'm:' .. q, P .. 'x:' .. q, P .. 'd:' .. q)
    redis.call('SREM', P .. 'Q', q)
    forgotten = forgotten + 1
  end
end

-- The sets of an hour go in turn, each in a moment of the second hour after it. The server frees them beside its work.
local hour = math.floor(now / HOUR)
local over = mark_set(hour - 2, math.floor((now - hour * HOUR) / MARK_SET_MS))
forgotten = forgotten + redis.call('SCARD', over)
redis.call('UNLINK', over)

-- Deletions of far jobs go with the note that says up to which hour any has gone: a job that comes is known to be deleted, or
-- to be doubtful.
local gone = redis.call('ZRANGEBYSCORE', P .. 'v', '-inf', text(hour - 2), 'WITHSCORES', 'LIMIT', 0, 500)
if #gone > 0 then
  local upto = tonumber(gone[#gone])
  if upto > tonumber(redis.call('GET', P .. 'f') or '-1') then redis.call('SET', P .. 'f', text(upto)) end
  redis.call('ZREMRANGEBYRANK', P .. 'v', 0, #gone / 2 - 1)
end
return { page[1], expired, forgotten + #gone / 2, redis.call('ZCARD', P .. 'v') }
