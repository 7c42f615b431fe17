-- What all scripts share. KEYS[1] is the shard's counter of jobs, whose name without its last letter begins all others; to
-- scripts about tokens it is the hash of these.
local P = string.sub(KEYS[1], 1, -2)
-- Numbers of jobs, which have one bit less than their place in an id: the id of a far job has this bit.
local SEQUENCES = 549755813888
local SHARD = 2 * SEQUENCES
local HALF = SEQUENCES / 2
-- The bit of the time that a job with attributes has.
local VERSIONED = 35184372088832
local TOMB = string.char(255)
-- The bytes of values after which a script looks at no more of them.
local BYTES_MAX = 4194304

-- While a slot of a cluster moves to another node, a script would find some keys and end at the first one that is away,
-- with a part of its work done. Two keys that never are make such a node refuse it here, before it has changed anything.
redis.call('EXISTS', P .. 'none1', P .. 'none2')

local HOUR = 3600000
-- The marks of an hour are in 256 sets, by a byte of the mark, and one after the other goes: a server that frees a set of
-- millions at once answers nothing for a second.
local MARK_SETS = 256
local MARK_SET_MS = HOUR / MARK_SETS

local function text(number)
  return string.format(number < 9007199254740992 and '%d' or '%.0f', number)
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Marks of jobs that are published at most once, by the hour in which they were.
local function mark_set(hour, number) return P .. 'o:' .. text(hour) .. ':' .. text(number) end

-- The byte is one that differs though the beginning of all marks of a shard is alike.
local function marks(hour, mark) return mark_set(hour, string.byte(mark, 12)) end

local function note_mark(hour, mark)
  local key = marks(hour, mark)
  redis.call('SADD', key, mark)
  -- It is kept for an hour after its own; in the hour after that a sweep takes it away, and if none does, the server later.
  if redis.call('SCARD', key) == 1 then
    redis.call('PEXPIREAT', key, text(math.ceil((hour + 3) * HOUR + string.byte(mark, 12) * MARK_SET_MS)))
  end
end

-- Whether a job of this mark was published about now. The next hour's, too: the clock may have gone back, by an hour.
local function is_known(now, mark)
  local hour, known = math.floor(now / HOUR), 0
  for near = hour - 1, hour + 1 do known = known + redis.call('SISMEMBER', marks(near, mark), mark) end
  return known > 0
end

-- From when on a delayed job is ready.
local function ready_ms(published, delay)
  local step = delay < 600 and 100 or 1000
  return math.ceil((published + delay * 1000) / step) * step
end

-- The time and the delay in an id, which begins at `at`.
local function times(bytes, at)
  local published = struct.unpack('>I6', bytes, at) % VERSIONED
  return published, (struct.unpack('<I4', bytes, at + 12))
end

-- The hour under which it is remembered that a far job was deleted: a week after it is due.
local function removal_hour(id)
  return math.floor(ready_ms(times(id, 1)) / HOUR) + 168
end

-- When the ttl of a job that was never taken ends (0: never), and its tries.
local function terms(record)
  local flags, at = string.byte(record), 18
  local tries, ttl = 1, 86400
  if flags % 2 == 1 then tries, at = struct.unpack('>I2', record, at) end
  if flags % 4 >= 2 then ttl = struct.unpack('>I4', record, at) end
  if ttl == 0 then return 0, tries end
  return times(record, 2) + ttl * 1000, tries
end

local function held(state, expires, tries, record)
  return state .. struct.pack('>I6I2', expires, tries) .. record
end

local function count(q, field, change)
  if change ~= 0 then redis.call('HINCRBY', P .. 'm:' .. q, field, text(change)) end
end

-- Counts as ready what has become so since the last look. It may have counted further, where the clock has gone back.
local function advance(q, now)
  local m = P .. 'm:' .. q
  local w = tonumber(redis.call('HGET', m, 'w') or '0')
  while w < now do
    local due = redis.call('ZRANGEBYSCORE', P .. 'i:' .. q, '(' .. text(w), text(now), 'LIMIT', 0, 500)
    local n = 0
    for _, at in ipairs(due) do
      n = n + redis.call('LLEN', P .. 'b:' .. at .. ':' .. q) - (redis.call('HGET', P .. 'x:' .. q, at) or 0)
      redis.call('HDEL', P .. 'x:' .. q, at)
    end
    w = #due == 500 and tonumber(due[500]) or now
    -- A queue that is not there needs no note.
    count(q, 'n', n)
    count(q, 'd', -n)
    if #due > 0 or redis.call('EXISTS', m) == 1 then redis.call('HSET', m, 'w', text(w)) end
  end
end

-- The place of an id in a list that is in the order of numbers, and its record.
local function find(key, id)
  local number = struct.unpack('>I6', id, 7) % SEQUENCES
  local low, high = 0, redis.call('LLEN', key) - 1
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local record = redis.call('LINDEX', key, middle)
    local ahead = (number - struct.unpack('>I6', record, 8) % SEQUENCES) % SEQUENCES
    if ahead == 0 then
      if string.sub(record, 2, 17) == id and string.sub(record, 1, 1) ~= TOMB then return middle, record end
      return nil
    end
    if ahead < HALF then low = middle + 1 else high = middle - 1 end
  end
end

-- The list in which a job waits that was never taken, and from when on it is ready (nil: at once).
local function list_of(q, id)
  local published, delay = times(id, 1)
  if delay == 0 then return P .. 'r:' .. q end
  local ready = ready_ms(published, delay)
  return P .. 'b:' .. text(ready) .. ':' .. q, ready
end

-- The list whose head has been ready longest: 'q' (ready again), 'r' (published without a delay) or 'b', with its key.
local function oldest(q, now)
  local kind, key, since
  local head = redis.call('LINDEX', P .. 'q:' .. q, 0)
  if head then kind, key, since = 'q', P .. 'q:' .. q, (struct.unpack('>I6', head)) end
  head = redis.call('LINDEX', P .. 'r:' .. q, 0)
  if head then
    local published = times(head, 2)
    if not since or published < since then kind, key, since = 'r', P .. 'r:' .. q, published end
  end
  head = redis.call('ZRANGE', P .. 'i:' .. q, 0, 0)[1]
  if head then
    local ready = tonumber(head)
    if ready <= now and (not since or ready < since) then
      kind, key, since = 'b', P .. 'b:' .. head .. ':' .. q, ready
    end
  end
  return kind, key, since
end

-- Puts records of new jobs, all with this delay and at most 4,000, into the list in which they wait.
local function enqueue(q, delay, now, records)
  local key, ready = P .. 'r:' .. q, nil
  if delay > 0 then
    ready = ready_ms(now, delay)
    key = P .. 'b:' .. text(ready) .. ':' .. q
  end
  local length = redis.call('RPUSH', key, unpack(records))
  if not ready then
    count(q, 'n', #records)
  else
    if length == #records then redis.call('ZADD', P .. 'i:' .. q, text(ready), text(ready)) end
    -- A clock that has gone back: it was counted up to there before.
    local w = tonumber(redis.call('HGET', P .. 'm:' .. q, 'w') or '0')
    count(q, ready <= w and 'n' or 'd', #records)
  end
  -- A queue that has a list is named already.
  if length == #records then redis.call('SADD', P .. 'Q', q) end
end

-- The bytes of a new job's record but for its tail.
local function head(flags, published, shard, number, coded)
  return flags .. struct.pack('>I6I6', published, shard * SHARD + number % SEQUENCES) .. coded
end

-- Takes up to so many entries off the head of a list.
local function pop(kind, key, since, q, most)
  local popped = redis.call('LPOP', key, most) or {}
  if kind == 'b' and redis.call('EXISTS', key) == 0 then redis.call('ZREM', P .. 'i:' .. q, text(since)) end
  return popped
end
