-- Every row of one source, or of all, in one instant: {seconds, microseconds, heads, states, heads, states, ...}.
-- KEYS: sources.  ARGV: prefix of the other keys, source id or empty.
local time = redis.call('TIME')
local answer = {time[1], time[2]}
local sources = ARGV[2] ~= '' and {ARGV[2]} or redis.call('SMEMBERS', KEYS[1])
for _, source in ipairs(sources) do
  answer[#answer + 1] = redis.call('HGETALL', ARGV[1] .. ':heads:' .. source)
  answer[#answer + 1] = redis.call('HGETALL', ARGV[1] .. ':states:' .. source)
end
return answer
