#!/bin/sh
# sglang-router with two Quire servers. It keeps a tree of the prompts that it sent to each server, and does not learn
# what the servers evict.
exec sglang-router launch \
  --host 0.0.0.0 \
  --port 8001 \
  --worker-urls http://quire-0:8000 http://quire-1:8000 \
  --policy cache_aware
