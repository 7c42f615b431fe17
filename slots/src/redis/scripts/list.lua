-- KEYS: m. ARGV: the tenant's two bytes, the first slot, the first index in it, the tasks and the entries at most.
local limit, looks = tonumber(ARGV[4]), tonumber(ARGV[5])
local answer = { text(tonumber(redis.call('HGET', KEYS[1], 'w') or '0')), '', '', 0 }
local looked = 0
for _, slot in ipairs(redis.call('ZRANGEBYSCORE', P .. 'i', ARGV[2], '+inf')) do
  local from = slot == ARGV[2] and tonumber(ARGV[3]) or 0
  while true do
    local entries = redis.call('LRANGE', P .. 'l:' .. slot, from, from + 99)
    for at, entry in ipairs(entries) do
      local index = from + at - 1
      looked = looked + 1
      if string.byte(entry) < 128 and string.sub(entry, 4, 5) == ARGV[1]
          and redis.call('GETBIT', P .. 'c:' .. slot, index) == 0
          and redis.call('GETBIT', P .. 'f:' .. slot, index) == 0 then
        answer[#answer + 1] = { slot, index, entry }
      end
      if #answer - 4 >= limit or looked >= looks then
        answer[2], answer[3], answer[4] = slot, text(index), looked
        return answer
      end
    end
    if #entries < 100 then break end
    from = from + 100
  end
end
answer[4] = looked
return answer
