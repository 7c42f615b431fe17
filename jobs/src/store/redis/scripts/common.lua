-- What all scripts share. KEYS[1] is the shard's hash of counters, whose name without its last letter begins all others.
local P = string.sub(KEYS[1], 1, -2)
local ENTRIES, NAMES, WAKES = P .. 'e', P .. 'k', P .. 'w'
-- The time to wake of an entry that is never woken: 2^64 - 1, as near as a number comes to it.
local NEVER = 18446744073709551615
-- The bytes of an answer.
local BYTES_MAX = 4194304

-- While a slot of a cluster moves to another node, a script would find some keys and end at the first one that is away,
-- with a part of its work done. Two keys that never are make such a node refuse it here, before it has changed anything.
redis.call('EXISTS', P .. 'none1', P .. 'none2')

-- A whole number in digits. What a call is given as a number, the server writes with all the digits that a fraction may need, which
-- takes longer than the call itself.
local function text(number)
  return string.format(number < 9007199254740992 and '%d' or '%.0f', number)
end

-- The clock, in milliseconds and in microseconds.
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000), t[1] * 1000000 + t[2]
end

-- Entries by their keys, as far as an answer may have them: whether there are more, then keys and entries. A few are read at
-- once: what is read beyond the bytes of an answer is no more than another one.
local function entries(keys, limit)
  local answer, bytes, n = { 0 }, 0, 1
  for first = 1, math.min(#keys, limit), 16 do
    local last = math.min(first + 15, #keys, limit)
    local found = redis.call('HMGET', ENTRIES, unpack(keys, first, last))
    for place = first, last do
      local key, entry = keys[place], found[place - first + 1]
      if not entry then return redis.error_reply('ERR unusable: an entry that is named is not there') end
      bytes = bytes + #key + #entry
      if bytes > BYTES_MAX and place > 1 then
        answer[1] = 1
        return answer
      end
      answer[n + 1], answer[n + 2] = key, entry
      n = n + 2
    end
  end
  if #keys > limit then answer[1] = 1 end
  return answer
end
