"""A Ray cluster of two machines, both of which are this one, until standard input ends. Each line of it asks for the
placement groups that exist."""

from __future__ import annotations

import json
import sys

import ray
from ray.cluster_utils import Cluster

MACHINE = {"num_cpus": 2, "object_store_memory": 80 << 20}

if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={**MACHINE, "include_dashboard": False})
    cluster.add_node(**MACHINE)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    print(cluster.address, flush=True)
    for _ in sys.stdin:
        groups = ray.util.placement_group_table().values()
        print(json.dumps([group["bundles"] for group in groups if group["state"] != "REMOVED"]), flush=True)
    ray.shutdown()
    cluster.shutdown()
