-- KEYS: the counters. ARGV: how many keys the groups name, and each of these once, in the order in which the groups name them;
-- then for each group the last time at which it may be made ('': any) and two letters for each of its changes, and then what
-- the letters call for. The first letter says what is expected: - anything, A nothing there, V the version that follows in 8
-- bytes; in lower case (x, a, v) it is about a key that was named before, and the place of that key follows first. The second
-- letter says what the entry becomes: S the same, D deleted, P what follows: the time to wake in 8 bytes, and the value; U the
-- same of a key that no scan has to find. L and F are about a mark, whose key follows here and not among the others: it is listed,
-- or forgotten.
-- Answers the clock, and of each group its version, c (a conflict) or l (late); or `full` alone, where the server has no
-- memory for it.
local call, byte, unpacked, argv = redis.call, string.byte, struct.unpack, ARGV
local now, now_us = clock()
local version_before = tonumber(call('HGET', KEYS[1], 'v') or '0')
local version = version_before
-- A key of another type shows here, not when a part is written.
call('ZCARD', NAMES)
call('ZCARD', WAKES)

-- By the place of a key: versions (or false) and times to wake as they were, and versions as the groups so far have made them.
local was, woke, is = {}, {}, {}
local count = tonumber(argv[1])
for first = 2, count + 1, 100 do
  local found = call('HMGET', ENTRIES, unpack(argv, first, math.min(first + 99, count + 1)))
  for at = 1, #found do
    local entry, place = found[at], first + at - 2
    if entry then
      if #entry < 16 then return redis.error_reply('ERR unusable: an entry in Redis is damaged') end
      was[place], woke[place] = unpacked('>I8I8', entry)
    else
      was[place], woke[place] = false, NEVER
    end
    is[place] = was[place]
  end
end

-- By the place of a key: what its entry becomes, or false where it is deleted. A group changes all of its own or none.
local becomes, is_unlisted = {}, {}
local places, values = {}, {}
-- By the key of a mark: whether it is listed.
local is_marked = {}
local marks, mark_letters = {}, {}
local answer = { text(now) }
local at, next_place = count + 2, 1
while at <= #argv do
  local not_after, letters = argv[at], argv[at + 1]
  at = at + 2
  local said = not_after ~= '' and tonumber(not_after) < now and 'l'
  local made, marked = 0, 0
  for letter = 1, #letters, 2 do
    local expected, what = byte(letters, letter, letter + 1)
    if what == 76 or what == 70 then
      marked = marked + 1
      marks[marked], mark_letters[marked] = argv[at], what
      at = at + 1
    else
      local place
      if expected >= 97 then
        place, at = tonumber(argv[at]), at + 1
        expected = expected == 120 and 45 or expected - 32
      else
        place, next_place = next_place, next_place + 1
      end
      if expected == 86 then
        if unpacked('>I8', argv[at]) ~= is[place] then said = said or 'c' end
        at = at + 1
      elseif expected == 65 and is[place] then
        said = said or 'c'
      end
      if what ~= 83 then
        made = made + 1
        places[made], values[made] = place, false
        if what ~= 68 then
          values[made] = argv[at]
          at = at + 1
          if what == 85 then is_unlisted[place] = true end
        end
      end
    end
  end
  if not said then
    -- From the year 2112 on, versions are counted.
    version = now_us < 4503599627370496 and now_us > version and now_us or version + 1
    if version >= 9007199254740992 then
      return redis.error_reply('ERR unusable: all versions of the shard are given')
    end
    local packed = struct.pack('>I8', version)
    for one = 1, made do
      local place, value = places[one], values[one]
      becomes[place] = value and packed .. value
      is[place] = value and version
    end
    for one = 1, marked do is_marked[marks[one]] = mark_letters[one] == 76 end
    said = version
  end
  answer[#answer + 1] = said
end
-- Also where a group wrote nothing, its version is an answer that is given once.
if version == version_before then return answer end

-- What is to be written.
local gone, puts, unnamed, named, asleep, awake = {}, {}, {}, {}, {}, {}
local adds = false
for key, is_listed in pairs(is_marked) do
  if is_listed then
    -- One that is there already is no new entry for a server that is full.
    if FULL and #call('ZRANGEBYLEX', NAMES, '[' .. key, '[' .. key) == 0 then adds = true end
    local n = #named
    named[n + 1], named[n + 2] = '0', key
  else
    unnamed[#unnamed + 1] = key
    -- One from before marks were kept so is an entry, too.
    gone[#gone + 1] = key
  end
end
for place = 1, count do
  local entry = becomes[place]
  if entry ~= nil then
    local key, old, new = argv[place + 1], woke[place], NEVER
    if entry then
      local n = #puts
      puts[n + 1], puts[n + 2] = key, entry
      if not was[place] then
        adds = true
        if not is_unlisted[place] then
          n = #named
          named[n + 1], named[n + 2] = '0', key
        end
      end
      new = unpacked('>I8', entry, 9)
    elseif was[place] then
      gone[#gone + 1] = key
      -- Also one that is not listed now: it may be from before that was so.
      unnamed[#unnamed + 1] = key
    end
    if new ~= old then
      if new ~= NEVER then
        local n = #awake
        awake[n + 1], awake[n + 2] = text(new), key
      else
        asleep[#asleep + 1] = key
      end
    end
  end
end
if FULL and adds then return redis.error_reply('ERR full: the server has no memory for new entries') end

-- A server that is full, or may not write, says so to the first command. From there on nothing may fail.
local noted = redis.pcall('HSET', KEYS[1], 'v', text(version))
if type(noted) == 'table' and noted.err then
  return string.find(noted.err, 'OOM', 1, true) and { 'full' } or noted
end
local function write(command, key, arguments)
  for first = 1, #arguments, 4000 do
    call(command, key, unpack(arguments, first, math.min(first + 3999, #arguments)))
  end
end
write('HDEL', ENTRIES, gone)
write('HSET', ENTRIES, puts)
write('ZREM', NAMES, unnamed)
write('ZADD', NAMES, named)
write('ZREM', WAKES, asleep)
write('ZADD', WAKES, awake)
return answer
