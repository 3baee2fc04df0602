-- Delete a worker if its state is still the one that was read, and its source with the last worker.
-- KEYS: sources, heads, states, workers.  ARGV: source id, worker id, state as read.
if redis.call('HGET', KEYS[3], ARGV[2]) ~= ARGV[3] then return 0 end
for number = 2, 4 do redis.call('HDEL', KEYS[number], ARGV[2]) end
if redis.call('HLEN', KEYS[3]) == 0 then redis.call('SREM', KEYS[1], ARGV[1]) end
return 1
