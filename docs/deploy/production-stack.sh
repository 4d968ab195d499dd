#!/bin/sh
# production-stack's router with two Quire servers. It reads vllm:num_requests_running and …_waiting, and the
# prefix counters, from /metrics: with keys, start the servers with --open-metrics. Clients send a session's name in the
# header x-session-id, so that its turns find what the earlier ones left.
exec vllm-router \
  --port 8001 \
  --service-discovery static \
  --static-backends http://quire-0:8000,http://quire-1:8000 \
  --static-models "$MODEL,$MODEL" \
  --routing-logic session \
  --session-key x-session-id \
  --engine-stats-interval 5
