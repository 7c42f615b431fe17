-- KEYS: the tokens. ARGV: the field of a token, which goes with its limit.
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', P .. 'w', ARGV[1])
return 1
