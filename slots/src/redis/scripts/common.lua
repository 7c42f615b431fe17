-- What all scripts share. KEYS[1] is the shard's meta hash, whose name without its last letter begins all others.
local P = string.sub(KEYS[1], 1, -2)
local DUE_MAX = 4294967295 * 60000 + 59999
-- The first index of tasks of the far tier, which are no entries of a list.
local FAR = 2147483648

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A whole number in digits. What a call is given as a number, the server writes with all the digits that a fraction may need, which
-- takes longer than the call itself.
local function text(number)
  return string.format(number < 9007199254740992 and '%d' or '%.0f', number)
end

-- Whether the lease is over, or the server has lost what its owner was told: `turn` is the last advance that it knows of,
-- if it says one.
local function is_lost(epoch, turn)
  local m = redis.call('HMGET', KEYS[1], 'e', 'o', 't')
  return m[1] ~= epoch or not m[2] or tonumber(m[3] or '0') < tonumber(turn or '0')
end

-- The slot of a time, and the milliseconds since it began.
local function slot_of(at)
  local slot = math.floor(at / 60000)
  return text(slot), at - slot * 60000
end

local function due_of(slot, record)
  return slot * 60000 + struct.unpack('>I2', record, 2)
end

local function place(slot, index)
  return struct.pack('>I4I4', slot, index)
end

local function key_of(record)
  if string.byte(record) % 2 == 1 then
    return string.sub(record, 4, 5) .. string.sub(record, 9, 8 + string.byte(record, 8))
  end
end

-- The parts of a record: its key with the length, the time that was asked for, its first id, its payload.
local function parts(record)
  local flags, at = string.byte(record), 8
  local key, asked, first = '', '', ''
  if flags % 2 == 1 then
    local length = 1 + string.byte(record, 8)
    key, at = string.sub(record, 8, 7 + length), 8 + length
  end
  if flags % 4 >= 2 then asked, at = string.sub(record, at, at + 7), at + 8 end
  if flags % 8 >= 4 then first, at = string.sub(record, at, at + 9), at + 10 end
  return key, asked, first, string.sub(record, at)
end

-- The tenant's task, wherever it was moved: its slot, its index, its record, whether it was cancelled.
local function locate(tenant, slot, index)
  while true do
    local is_far = tonumber(index) >= FAR
    local is_over = not is_far and redis.call('GETBIT', P .. 'c:' .. slot, index) == 1
    local to = (is_far or is_over) and redis.call('HGET', P .. 'v:' .. slot, index)
    if to then
      local s, i = struct.unpack('>I4I4', to)
      slot, index = text(s), text(i)
    else
      local record = redis.call('LINDEX', P .. 'l:' .. slot, index)
      if not record or string.byte(record) >= 128 or string.sub(record, 4, 5) ~= tenant then return nil end
      return slot, index, record, is_over
    end
  end
end

-- The task to which a key leads by what is stored of it, and the digest of its add where that came by a queue. A task whose
-- slot has gone without freeing its key is over.
local function led_by(to)
  if not to then return nil end
  local s, i = struct.unpack('>I4I4', to)
  if redis.call('EXISTS', P .. 'l:' .. text(s)) == 0 then return nil, nil, string.sub(to, 9) end
  return text(s), text(i), string.sub(to, 9)
end

local function by_key(field)
  return led_by(redis.call('HGET', P .. 'k', field))
end

local function append(slot, entry)
  local index = redis.call('RPUSH', P .. 'l:' .. slot, entry) - 1
  if index == 0 then redis.call('ZADD', P .. 'i', slot, slot) end
  return text(index)
end

local function count(tenant, change)
  if redis.call('HINCRBY', P .. 'n', tenant, change) <= 0 then redis.call('HDEL', P .. 'n', tenant) end
end

-- Notes that a key was used once: 1 its task is over, 2 it was cancelled, 3 it was cancelled before its add came. The digest
-- is that of its add. A mark of the third kind counts as a waiting task until another one takes its place.
local function mark(field, how, digest)
  local before = how ~= '3' and redis.call('HGET', P .. 'u', field)
  redis.call('HSET', P .. 'u', field, how .. digest)
  if before and string.sub(before, 1, 1) == '3' then count(text((struct.unpack('>I2', field))), -1) end
  redis.call('ZADD', P .. 'x', text(now_ms()), field)
end

-- Frees a key where it leads to this place. One whose add came by a queue is marked.
local function free_key(field, at, how)
  local to = redis.call('HGET', P .. 'k', field)
  if to and string.sub(to, 1, 8) == at then
    redis.call('HDEL', P .. 'k', field)
    if #to > 8 then mark(field, how, string.sub(to, 9)) end
  end
end

-- Whether a task was added with this due time, and with the route and the payload of this record.
local function is_same(slot, old, due, record)
  local _, asked, _, payload = parts(old)
  local was_due = asked == '' and due_of(slot, old) or struct.unpack('>I8', asked)
  local _, _, _, own = parts(record)
  return was_due == due and payload == own and string.sub(old, 4, 7) == string.sub(record, 4, 7)
end

-- Whether the key of the task at this place is free for another one that is to be added: the task fires, or has fired, and is
-- another one.
local function gives_up_key(w, slot, index, due, record)
  local old = redis.call('LINDEX', P .. 'l:' .. slot, index)
  if not old or string.byte(old) >= 128 then return true end
  if due_of(slot, old) > w then return false end
  return not is_same(slot, old, due, record)
end

-- Notes for callers and for dispatchers that the entry is no task any more, or where it is now.
local function over(slot, index, to)
  redis.call('SETBIT', P .. 'c:' .. slot, index, 1)
  if to then redis.call('HSET', P .. 'v:' .. slot, index, to) end
  append(slot, struct.pack('>I1I4', 128, index))
end
