"""What parsed options mean: settings, a budget, a model's shape. The same in every command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from quire.build.machine import Machine, machine_of, this_machine
from quire.core.dtypes import DType
from quire.core.errors import InputError
from quire.core.units import MIB
from quire.fetch.find import configuration, find_source, is_gguf, is_of_hub
from quire.models.read import read_config, read_model
from quire.models.shape import ModelShape
from quire.models.weight_layout import WeightFormat
from quire.plan.settings import DEFAULT_FRACTION, Budget, Settings
from quire.planner.devices import device_bytes

SMALLEST_DEVICE = MIB


def shape_of(model: str, ignore_fields: Sequence[str], weight_format: WeightFormat | None) -> ModelShape:
    """The shape of any model that can be planned, including a GGUF file and a model of the hub, of which only the
    configuration and the index are read."""
    if is_of_hub(model):
        name, config = configuration(find_source(model))
    elif is_gguf(Path(model)):
        name, config = configuration(Path(model))
    else:
        return read_model(model, ignore_fields=ignore_fields, weight_format=weight_format)
    return read_config(config, name, ignore_fields, weight_format)


def weight_format_of(options: argparse.Namespace, budget: Budget) -> WeightFormat | None:
    """How the machine of the plan stores the weights, as a boot there does; None: as the checkpoint has them."""
    if not budget.is_accelerator:
        return WeightFormat(options.dtype or DType.FP32, on_cpu=True, packed=options.weights)
    if options.dtype is None and options.weights is None:
        return None
    return WeightFormat(options.dtype or DType.BF16, on_cpu=False, packed=options.weights)


def settings_of(options: argparse.Namespace, weight_format: WeightFormat | None = None) -> Settings:
    """On a CPU, keys and values are stored like the weights (`weight_format`), unless requested otherwise."""
    kv_dtype = weight_format.dtype if weight_format is not None and weight_format.on_cpu else DType.BF16
    return Settings(
        max_length=options.max_length,
        max_requests=options.max_requests,
        batch_tokens=options.batch_tokens,
        kv_dtype=options.kv_dtype or kv_dtype,
        state_dtype=options.state_dtype,
        page_tokens=options.page_tokens,
        match_unit_tokens=options.match_unit,
        reserved_pages=options.reserved_pages,
        tensor_parallel=options.tensor_parallel,
        pipeline_parallel=stages_of(options),
        stage_layers=options.stage_layers,
        speculative_tokens=options.speculative_tokens,
        host_bytes=options.host_memory,
        host_block_tokens=options.host_block,
        lease_bytes=options.lease_memory,
    )


def stages_of(options: argparse.Namespace) -> int:
    """Layers per stage say how many stages there are."""
    given: int = options.pipeline_parallel
    return len(options.stage_layers) if options.stage_layers and given == 1 else given


def budget_of(options: argparse.Namespace, machine: Machine | None = None) -> Budget:
    """The given budget; if none is given, this machine, or the part of it that a model runs on."""
    if machine is None and (options.device or "").lower() == "cpu":
        machine = machine_of("cpu")
    if machine is not None:
        options = argparse.Namespace(**{**vars(options), "device": None})  # it says where to run, which is decided
    is_whole = options.memory is None and options.memory_fraction is None
    if options.device is not None and options.memory is not None:
        raise InputError(f"--device {options.device} and --memory both name a device's memory: give one of them")
    if all(given is None for given in (options.device, options.memory, options.pool, options.sheets)):
        machine = machine or this_machine()
        fraction = machine.memory_fraction if options.memory_fraction is None else options.memory_fraction
        name, is_accelerator = machine.name, machine.is_accelerator
        return Budget(machine.memory_bytes, fraction, None, None, name, is_accelerator, is_whole)
    memory = options.memory if options.device is None else device_bytes(options.device)
    if options.memory_fraction is not None and memory is None:
        raise InputError("--memory-fraction is a part of --device or --memory: give one of them, or leave it out")
    if memory is not None and memory < SMALLEST_DEVICE:
        raise InputError(f"a device of {memory} B is no device: write the unit, like --memory 80GiB")
    fraction = DEFAULT_FRACTION if options.memory_fraction is None else options.memory_fraction
    is_accelerator = machine is None or machine.is_accelerator
    name = options.device.lower() if options.device else _unnamed(machine, memory)
    return Budget(memory, fraction, options.pool, options.sheets, name, is_accelerator, is_whole)


def _unnamed(machine: Machine | None, memory_bytes: int | None) -> str:
    """A size without a device means an accelerator, unless it is known where the model runs."""
    where = "an accelerator" if machine is None or machine.is_accelerator else "main memory"
    size = "" if memory_bytes else " of any size"
    return f"{where}{size}" + (" (main memory: --device cpu)" if machine is None else "")
