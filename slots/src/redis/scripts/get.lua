-- KEYS: m. ARGV: the tenant's two bytes; for each task the key or nothing, slot, index.
local answer = { text(tonumber(redis.call('HGET', KEYS[1], 'w') or '0')) }
for at = 2, #ARGV, 3 do
  local slot, index = ARGV[at + 1], ARGV[at + 2]
  if ARGV[at] ~= '' then slot, index = by_key(ARGV[at]) end
  local record, is_over
  if slot then slot, index, record, is_over = locate(ARGV[1], slot, index) end
  if slot then
    answer[#answer + 1] = { slot, index, is_over and 1 or 0, record }
  else
    answer[#answer + 1] = {}
  end
end
return answer
