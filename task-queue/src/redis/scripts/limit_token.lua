-- KEYS: the tokens. ARGV: the field of a token, and its limit, or nothing where it shall have none. Returns 1 where there is
-- such a token: a limit without one would be that of a later token of this name.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if ARGV[2] then
  redis.call('HSET', P .. 'w', ARGV[1], ARGV[2])
else
  redis.call('HDEL', P .. 'w', ARGV[1])
end
return 1
