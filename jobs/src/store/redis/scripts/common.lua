-- What all scripts share. KEYS[1] is the shard's hash of counters, whose name without its last letter begins all others.
local P = string.sub(KEYS[1], 1, -2)
local ENTRIES, NAMES, WAKES = P .. 'e', P .. 'k', P .. 'w'
-- The time to wake of an entry that is never woken.
local NEVER = string.rep('\255', 8)
-- The bytes of an answer.
local BYTES_MAX = 4194304

-- While a slot of a cluster moves to another node, a script would find some keys and end at the first one that is away,
-- with a part of its work done. Two keys that never are make such a node refuse it here, before it has changed anything.
redis.call('EXISTS', P .. 'none1', P .. 'none2')

local function text(number)
  return string.format('%.0f', number)
end

-- The clock, in milliseconds and in microseconds.
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000), t[1] * 1000000 + t[2]
end

-- Entries by their keys, as far as an answer may have them: whether there are more, then keys and entries.
local function entries(keys, limit)
  local answer, bytes = { 0 }, 0
  for place, key in ipairs(keys) do
    if place > limit then
      answer[1] = 1
      break
    end
    local entry = redis.call('HGET', ENTRIES, key)
    if not entry then return redis.error_reply('ERR unusable: an entry that is named is not there') end
    bytes = bytes + #key + #entry
    if bytes > BYTES_MAX and place > 1 then
      answer[1] = 1
      break
    end
    answer[#answer + 1] = key
    answer[#answer + 1] = entry
  end
  return answer
end
