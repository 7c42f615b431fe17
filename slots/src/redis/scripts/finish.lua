-- KEYS: m, n, k, d, l, f, a of the slot, u, x. ARGV: the epoch, the sequence, the slot, the last turn that the owner knows
-- of; then five parts, each behind its number: bytes of the done bitmap with their place, keys with their index, tenants
-- with how many are over, indices with their attempts, dead letters' ids and bodies.
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
each(2, function(field, index) free_key(field, place(ARGV[3], index), '1') end)
each(3, function(tenant, n) count(tenant, -tonumber(n)) end)
each(5, function(id, body)
  redis.call('ZREMRANGEBYLEX', KEYS[4], '[' .. id, '(' .. id .. '\1')
  redis.call('ZADD', KEYS[4], 0, id .. body)
end)
redis.call('HSET', KEYS[1], 'fe', ARGV[1], 'fs', ARGV[2])
return 'done'
