"""A Ray cluster of one machine, until standard input ends. Each line of it asks for the placement groups that exist."""

from __future__ import annotations

import json
import sys

import ray

CPUS = 4

if __name__ == "__main__":
    ray.init(
        address="local",
        num_cpus=CPUS,
        include_dashboard=False,
        object_store_memory=80 << 20,
        logging_level="ERROR",
        log_to_driver=False,
    )
    print(ray.get_runtime_context().gcs_address, flush=True)
    for _ in sys.stdin:
        groups = ray.util.placement_group_table().values()
        print(json.dumps([group["bundles"] for group in groups if group["state"] != "REMOVED"]), flush=True)
