-- KEYS: m, n, i, k, d. ARGV: the tenant's number; 1 to send again; then the ids.
local w = tonumber(redis.call('HGET', KEYS[1], 'w') or '0')
local slot, ms = slot_of(w)
redis.call('EXISTS', P .. 'l:' .. slot)
local answer = {}
for at = 3, #ARGV do
  local id = ARGV[at]
  local stored = redis.call('ZRANGEBYLEX', KEYS[5], '[' .. id, '(' .. id .. '\1', 'LIMIT', 0, 1)[1]
  answer[#answer + 1] = stored and 1 or 0
  if stored then
    redis.call('ZREM', KEYS[5], stored)
    if ARGV[2] == '1' then
      -- Behind the id: due, died, attempts, the length of the reason, the reason, the record.
      local due = string.sub(stored, 11, 18)
      local reason = struct.unpack('>I2', stored, 31)
      local record = string.sub(stored, 33 + reason)
      local flags, from = string.byte(record), 8
      local key = ''
      if flags % 2 == 1 then
        local length = 1 + string.byte(record, 8)
        key, from = string.sub(record, 8, 7 + length), 8 + length
      end
      if flags % 4 >= 2 then due, from = string.sub(record, from, from + 7), from + 8 end
      if flags % 8 >= 4 then from = from + 10 end
      local asked = struct.unpack('>I8', due) < w and due or ''
      flags = 4 + (key ~= '' and 1 or 0) + (asked ~= '' and 2 or 0)
      local first = struct.pack('>I2', tonumber(string.match(KEYS[1], ':(%x+)}:m$'), 16)) .. string.sub(id, 3, 10)
      local entry = struct.pack('>I1I2', flags, ms) .. string.sub(record, 4, 7) .. key .. asked .. first
        .. string.sub(record, from)
      local index = append(slot, entry)
      local field = key_of(record)
      -- Where another task has taken the key meanwhile, that one keeps it.
      if field and not by_key(field) then redis.call('HSET', KEYS[4], field, place(slot, index)) end
      redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
    end
  end
end
return answer
