-- KEYS: m, n, k, d, l, f, a of the slot, u, x. ARGV: the epoch, the sequence, the slot, the last turn that the owner knows
-- of; then five parts, each behind its number: bytes of the done bitmap with their place, keys with the slot and the index of
-- their task in 4 bytes each, tenants with how many are over, indices with their attempts, dead letters' ids and bodies.
if is_lost(ARGV[1], ARGV[4]) then return 'lost' end
local m = redis.call('HMGET', KEYS[1], 'fe', 'fs')
if m[1] == ARGV[1] and tonumber(m[2]) >= tonumber(ARGV[2]) then return 'done' end
local parts, at = {}, 5
for part = 1, 5 do
  local n = tonumber(ARGV[at])
  parts[part] = { at + 1, at + 2 * n }
  at = at + 1 + 2 * n
end
local entries = redis.call('LLEN', KEYS[5])
local function each(part, work)
  for pair = parts[part][1], parts[part][2], 2 do work(ARGV[pair], ARGV[pair + 1]) end
end
-- Frees the keys that lead to their tasks, as free_key does one.
local function free_keys(first_pair, last_pair)
  local fields, freed, marks = {}, {}, {}
  for pair = first_pair, last_pair, 2 do fields[#fields + 1] = ARGV[pair] end
  for first = 1, #fields, 4000 do
    local last = math.min(first + 3999, #fields)
    local leads = redis.call('HMGET', KEYS[3], unpack(fields, first, last))
    for at = first, last do
      local to, own = leads[at - first + 1], ARGV[first_pair + 2 * at - 1]
      if to and (to == own or string.sub(to, 1, 8) == own) then
        freed[#freed + 1] = fields[at]
        if #to > 8 then marks[fields[at]] = string.sub(to, 9) end
      end
    end
  end
  for first = 1, #freed, 4000 do
    redis.call('HDEL', KEYS[3], unpack(freed, first, math.min(first + 3999, #freed)))
  end
  for field, digest in pairs(marks) do mark(field, '1', digest) end
end
-- A slot that is gone keeps no bits; whatever else the batch says still holds.
if entries > 0 then
  local beyond = false
  each(1, function(first, bytes) beyond = beyond or tonumber(first) + #bytes > math.ceil(entries / 8) end)
  each(4, function(index) beyond = beyond or tonumber(index) >= entries end)
  -- The owner has read entries that the server has lost.
  if beyond then return 'lost' end
  each(1, function(first, bytes) redis.call('SETRANGE', KEYS[6], first, bytes) end)
  each(4, function(index, attempts) redis.call('HSET', KEYS[7], index, attempts) end)
end
free_keys(parts[2][1], parts[2][2])
each(3, function(tenant, n) count(tenant, -tonumber(n)) end)
each(5, function(id, body)
  redis.call('ZREMRANGEBYLEX', KEYS[4], '[' .. id, '(' .. id .. '\1')
  redis.call('ZADD', KEYS[4], 0, id .. body)
end)
redis.call('HSET', KEYS[1], 'fe', ARGV[1], 'fs', ARGV[2])
return 'done'
