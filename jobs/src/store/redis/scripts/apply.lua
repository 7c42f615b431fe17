-- KEYS: the counters. ARGV: for each group the last time at which it may be made ('': any) and the number of its changes;
-- then of each change its key, what is expected ('': anything, A: nothing there, else the version in 8 bytes), and what the
-- entry becomes ('': the same, D: deleted, else P, the time to wake in 8 bytes, and the value). Answers the clock, and of each
-- group its version, c (a conflict) or l (late); or `full` alone, where the server has no memory for it.
local now, now_us = clock()
local version_before = tonumber(redis.call('HGET', KEYS[1], 'v') or '0')
local version = version_before
-- A key of another type shows here, not when a part is written.
redis.call('ZCARD', NAMES)
redis.call('ZCARD', WAKES)

-- Version and time to wake of entries as they were; the same, or what is written, as the groups so far have made them; and
-- the keys of those that changed, in order.
local before, present, changed, is_changed = {}, {}, {}, {}

local function read(keys)
  for place, entry in ipairs(redis.call('HMGET', ENTRIES, unpack(keys))) do
    -- A value is of no use here, and many of them would be much.
    local head = entry and string.sub(entry, 1, 16)
    before[keys[place]], present[keys[place]] = head, head
  end
end

local function read_all()
  local keys, at = {}, 1
  while at <= #ARGV do
    local from = at + 2
    local to = from + 3 * tonumber(ARGV[at + 1]) - 1
    at = to + 1
    for one = from, to, 3 do
      local key = ARGV[one]
      if before[key] == nil then
        before[key] = false
        keys[#keys + 1] = key
      end
    end
    if #keys >= 100 or (at > #ARGV and #keys > 0) then
      read(keys)
      keys = {}
    end
  end
end

local function all_as_expected(from, to)
  for at = from, to, 3 do
    local entry, expected = present[ARGV[at]], ARGV[at + 1]
    if expected == 'A' then
      if entry then return false end
    elseif expected ~= '' then
      if not entry or string.sub(entry, 1, 8) ~= expected then return false end
    end
  end
  return true
end

local function make(from, to, packed)
  for at = from, to, 3 do
    local key, becomes = ARGV[at], ARGV[at + 2]
    if becomes ~= '' then
      if not is_changed[key] then
        is_changed[key] = true
        changed[#changed + 1] = key
      end
      present[key] = becomes ~= 'D' and packed .. string.sub(becomes, 2)
    end
  end
end

read_all()
local answer = { text(now) }
local at = 1
while at <= #ARGV do
  local not_after, from = ARGV[at], at + 2
  local to = from + 3 * tonumber(ARGV[at + 1]) - 1
  at = to + 1
  if not_after ~= '' and tonumber(not_after) < now then
    answer[#answer + 1] = 'l'
  elseif not all_as_expected(from, to) then
    answer[#answer + 1] = 'c'
  else
    -- From the year 2112 on, versions are counted.
    version = now_us < 4503599627370496 and now_us > version and now_us or version + 1
    if version >= 9007199254740992 then
      return redis.error_reply('ERR unusable: all versions of the shard are given')
    end
    make(from, to, struct.pack('>I8', version))
    answer[#answer + 1] = text(version)
  end
end
-- Also where a group wrote nothing, its version is an answer that is given once.
if version == version_before then return answer end

local function wake_of(entry)
  local packed = entry and string.sub(entry, 9, 16)
  return packed and packed ~= NEVER and text((struct.unpack('>I8', packed)))
end

-- What is to be written, by command and key.
local work = {}
local function list(command, key)
  local arguments = {}
  work[#work + 1] = { command, key, arguments }
  return arguments
end
local gone, puts = list('HDEL', ENTRIES), list('HSET', ENTRIES)
local unnamed, named = list('ZREM', NAMES), list('ZADD', NAMES)
local asleep, awake = list('ZREM', WAKES), list('ZADD', WAKES)
for _, key in ipairs(changed) do
  local was, is = before[key], present[key]
  if is then
    puts[#puts + 1] = key
    puts[#puts + 1] = is
    if not was then
      named[#named + 1] = '0'
      named[#named + 1] = key
    end
  elseif was then
    gone[#gone + 1] = key
    unnamed[#unnamed + 1] = key
  end
  local old, new = wake_of(was), wake_of(is)
  if new and new ~= old then
    awake[#awake + 1] = new
    awake[#awake + 1] = key
  elseif old and not new then
    asleep[#asleep + 1] = key
  end
end
if FULL and #named > 0 then return redis.error_reply('ERR full: the server has no memory for new entries') end

-- A server that is full, or may not write, says so to the first command. From there on nothing may fail.
local noted = redis.pcall('HSET', KEYS[1], 'v', text(version))
if type(noted) == 'table' and noted.err then
  return string.find(noted.err, 'OOM', 1, true) and { 'full' } or noted
end
for _, one in ipairs(work) do
  local command, key, arguments = one[1], one[2], one[3]
  for first = 1, #arguments, 4000 do
    redis.call(command, key, unpack(arguments, first, math.min(first + 3999, #arguments)))
  end
end
return answer
