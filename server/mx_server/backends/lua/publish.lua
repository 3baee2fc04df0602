-- Store a worker anew: no load, its own status, stamped by this server's clock.
-- KEYS: sources, heads, states, workers.  ARGV: source id, worker id, head, worker, rank, status.
local stored = redis.call('HGET', KEYS[3], ARGV[2])
local before = stored and #stored >= 16 and select(3, struct.unpack('<I4I4d', stored)) or 0
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- rules.next_stamp: every accepted write moves the stamp on, unless the stored one is from a broken clock.
local stamp = (now > before or before - now > 1000) and now or before + 1
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], struct.pack('<I4I4d', ARGV[5], ARGV[6], stamp))
redis.call('HSET', KEYS[4], ARGV[2], ARGV[4])
return 1
