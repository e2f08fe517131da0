"""Values that have the right type but cannot work: ranges, and fields of the project that contradict each other.

Pure functions from a value to the problems found, so that a file's errors all come together. Stages are in
`stage_checks`, edges between stages in `graph`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from charter.errors import Problem
from charter.spec.architecture import Architecture
from charter.spec.execution import CPU, shares_accelerators
from charter.spec.launching import Launch
from charter.spec.project import QUANTISED, DataSpec, ModelSpec, Place, Project, Resources, Serving
from charter.spec.quantity import (
    ABOVE_ONE,
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_ABOVE_ZERO,
    check_ranges,
)
from charter.spec.sections import (
    REFERENCE,
    check_alerts,
    check_budget,
    check_costs,
    check_idle,
    check_metering,
    check_risk,
    check_tracking,
)
from charter.spec.stage import TRAINS, references
from charter.spec.stage_base import ServerPool
from charter.spec.sweep import check_sweeps


def check_architecture(shape: Architecture, path: str) -> Iterator[Problem]:
    """Problems of an architecture: sizes out of range, heads that do not divide, layers that do not add up."""
    sizes = ("hidden_size", "num_layers", "intermediate_size")
    more = ("vocab_size", "max_position_embeddings", "norm_parameters_per_feature", "sliding_window")
    yield from check_ranges(shape, path, [(name, AT_LEAST_ONE) for name in (*sizes, *more)])
    zero_allowed = ("norms_per_layer", "learned_positions", "sliding_window_layers")
    yield from check_ranges(shape, path, [(name, NOT_NEGATIVE) for name in zero_allowed])
    yield from check_ranges(shape, path, [("rope_theta", POSITIVE), ("norm_eps", POSITIVE)])
    yield from check_heads(shape, path)
    if shape.mixture is not None:
        counts = ("num_experts", "experts_per_token", "expert_intermediate_size")
        yield from check_ranges(shape.mixture, f"{path}.mixture", [(name, AT_LEAST_ONE) for name in counts])
        if shape.mixture.experts_per_token > shape.mixture.num_experts:
            message = f"more than the {shape.mixture.num_experts} experts; found {shape.mixture.experts_per_token}"
            yield Problem(message=message, path=f"{path}.mixture.experts_per_token")
    yield from _check_layers(shape, path)
    yield from _check_parts(shape, path)


def check_heads(shape: Architecture, path: str) -> Iterator[Problem]:
    """Problems of the heads of attention: none at all, or numbers that do not divide."""
    heads = ("num_heads", "num_kv_heads", "head_dim")
    yield from check_ranges(shape, path, [(name, AT_LEAST_ONE) for name in heads])
    widths = shape.head_dim is None and shape.latent_attention is None
    if shape.num_heads >= 1 and widths and shape.hidden_size % shape.num_heads:
        message = f"{shape.num_heads} heads do not divide hidden_size {shape.hidden_size}"
        yield Problem(message=message, path=f"{path}.num_heads", hint="change one of them, or give head_dim")
    if shape.kv_heads >= 1 and shape.num_heads % shape.kv_heads:
        message = f"{shape.kv_heads} key/value heads do not divide the {shape.num_heads} query heads"
        yield Problem(message=message, path=f"{path}.num_kv_heads")


def _check_layers(shape: Architecture, path: str) -> Iterator[Problem]:
    """Layers of a kind are at most all layers."""
    optional = ("attention_chunk", "num_attention_layers", "num_mlp_layers", "embedding_size")
    yield from check_ranges(shape, path, [(name, NOT_NEGATIVE) for name in ("chunked_layers", "num_mtp_layers")])
    yield from check_ranges(shape, path, [(name, AT_LEAST_ONE) for name in optional])
    mixers = shape.state_space_layers + (shape.num_attention_layers or 0)
    counts = {
        "sliding_window_layers": shape.sliding_window_layers,
        "chunked_layers": shape.chunked_layers,
        "num_attention_layers": mixers if shape.state_space else shape.num_attention_layers or 0,
        "num_mlp_layers": shape.num_mlp_layers or 0,
        "sparse_indexer.num_layers": shape.indexer_layers,
        "state_space.num_layers": shape.state_space_layers,
        "mixture.num_dense_layers": shape.mixture.num_dense_layers if shape.mixture else 0,
        "mixture.num_moe_layers": (shape.mixture.num_moe_layers or 0) if shape.mixture else 0,
    }
    for name, count in counts.items():
        if count > shape.num_layers:
            message = f"{count} layers of this kind (recurrent ones counted) of {shape.num_layers} in all"
            yield Problem(message=message, path=f"{path}.{name}")


def _check_parts(shape: Architecture, path: str) -> Iterator[Problem]:
    """Ranges of the indexer, of the recurrent layers and of the encoder; what an indexer needs beside it."""
    if shape.sparse_indexer is not None:
        inner, heads = f"{path}.sparse_indexer", ("num_heads", "head_dim", "top_k", "num_layers")
        yield from check_ranges(shape.sparse_indexer, inner, [(name, AT_LEAST_ONE) for name in heads])
        if shape.latent_attention is None or not shape.latent_attention.q_lora_rank:
            yield Problem(message="needs latent_attention with a q_lora_rank", path=inner)
        if shape.sliding_window_layers or shape.chunked_layers:
            yield Problem(message="cannot be combined with windows or chunks of positions", path=inner)
    if shape.state_space is not None:
        sizes = ("num_layers", "inner_size", "state_size", "num_heads", "num_groups", "conv_kernel", "chunk_size")
        yield from check_ranges(shape.state_space, f"{path}.state_space", [(name, AT_LEAST_ONE) for name in sizes])
    if shape.encoder is not None:
        layers = ("hidden_size", "num_layers", "num_heads", "intermediate_size")
        tokens = ("tokens_per_sample", "output_tokens_per_sample")
        yield from check_ranges(shape.encoder, f"{path}.encoder", [(name, AT_LEAST_ONE) for name in (*layers, *tokens)])
        counts = ("embedding_parameters", "projector_parameters", "windowed_layers")
        yield from check_ranges(shape.encoder, f"{path}.encoder", [(name, NOT_NEGATIVE) for name in counts])


NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
PART = re.compile(r"([0-9]{1,6})\s*/\s*([0-9]{1,6})")
ACCELERATOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]*(?::[0-9]+)?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A variable of the environment by the names that POSIX allows."""
BYTE_ALPHABET = 256
"""Every byte is a token of a byte-level tokenizer, before special tokens and merges."""


RESERVED = re.compile(r"con|prn|aux|nul|(com|lpt)[0-9]", re.IGNORECASE)
"""Devices of Windows (Microsoft, "Naming Files, Paths, and Namespaces"): no file can be called so there."""


def check_name(name: str, path: str) -> Iterator[Problem]:
    """Names become directories and parts of `--set` paths, so they are kept plain, and no other system's devices."""
    if not NAME.fullmatch(name):
        hint = "letters, digits, _ and -, at most 64, not beginning with -"
        yield Problem(message=f"{name!r} cannot be a name", path=path, hint=hint)
    if RESERVED.fullmatch(name):
        yield Problem(message=f"{name!r} is the name of a device on Windows", path=path)


def check_directories(names: Iterable[str], path: str) -> Iterator[Problem]:
    """Names become directories, which other systems must be able to hold side by side."""
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(name.casefold(), name)
        if other != name:
            message = f"{name!r} and {other!r} differ in case alone, and are one directory on some systems"
            yield Problem(message=message, path=f"{path}.{name}", hint="rename one of them")


def check_project(project: Project) -> Iterator[Problem]:
    """Problems of the project's own fields: name, seed, execution block, what stages need from it."""
    yield from check_name(project.name, "name")
    yield from check_directories(project.pipeline, "pipeline")
    seeds = {"seed": project.seed, **{f"pipeline.{name}.seed": stage.seed for name, stage in project.pipeline.items()}}
    for path, seed in seeds.items():
        if seed is not None and not 0 <= seed < 2**63:
            yield Problem(message=f"must be from 0 to 2^63 - 1; found {seed}", path=path)
    yield from check_ranges(project, "", [("deadline", POSITIVE)])
    counts = ("keep_last", "keep_every", "replicate_every")
    yield from check_ranges(project.storage, "storage", [(name, AT_LEAST_ONE) for name in counts])
    yield from _check_ledger(project.storage.ledger)
    yield from _check_resources(project.resources)
    yield from _check_serving(project)
    for name, model in project.models.items():
        if model.precision in QUANTISED and (why := _not_served(name, project)) is not None:
            message = f"{model.precision} is what vLLM brings a model to that it serves, and {why}"
            hint = "leave `precision` out; stages that train say `dtype`, and their adapters `base_bits`"
            yield Problem(message=message, path=f"models.{name}.precision", hint=hint)
    yield from check_costs(project.costs)
    yield from check_risk(project.risk)
    yield from check_tracking(project.tracking)
    yield from check_metering(project.metering)
    yield from check_idle(project.idle)
    yield from _check_launch(project.launch)
    for engine, place in project.engines.items():
        yield from _check_variables(place.environment, f"engines.{engine}.environment")
    yield from check_budget(project.budget, project.pipeline)
    yield from check_sweeps(project.sweeps, {name: stage.kind for name, stage in project.pipeline.items()})
    yield from check_alerts(project.alerts)
    yield from _check_samples(project)
    for name in project.notes:
        if name not in project.pipeline:
            yield Problem(message=f"no stage is called {name!r}", path=f"notes.{name}")
    asking = [name for name, stage in project.pipeline.items() if stage.reads_constitution and stage.kind != "eval"]
    if asking and project.constitution is None:
        hint = "add  constitution: constitution.yaml  (`charter init` writes one to start from)"
        yield Problem(message=f"the key 'constitution' is missing; stage {asking[0]!r} needs it", hint=hint)


def _check_samples(project: Project) -> Iterator[Problem]:
    """Values of `samples:` outside their range, and prompts that are no data set."""
    yield from check_ranges(
        project.samples, "samples", [("count", NOT_NEGATIVE), ("max_new_tokens", AT_LEAST_ONE), ("share", SHARE)]
    )
    name = project.samples.prompts
    if name is not None and name not in project.data:
        yield Problem(message=f"no data set is called {name!r}", path="samples.prompts")


def _check_launch(launch: Launch) -> Iterator[Problem]:
    """Settings that no scheduler could start a stage with, or with which none would get anywhere."""
    checks = [("slow_rank_ratio", ABOVE_ONE), ("spares", NOT_NEGATIVE)]
    yield from check_ranges(launch.node_checks, "launch.node_checks", checks)
    yield from check_ranges(launch.slurm, "launch.slurm", [("max_array_tasks", AT_LEAST_ONE)])
    yield from check_ranges(launch, "launch", [("time_limit", POSITIVE)])
    if launch.time_limit is not None and 0 < launch.time_limit <= launch.stop_before:
        message = f"an attempt of {launch.time_limit:g} s that ends {launch.stop_before:g} s before has no time at all"
        yield Problem(message=message, path="launch.time_limit", hint="raise it, or lower launch.stop_before")
    yield from _check_variables(launch.environment, "launch.environment")


def _check_variables(variables: Mapping[str, str], path: str) -> Iterator[Problem]:
    """Variables that no process can be given; their values may be secrets, and are not shown."""
    for name, value in variables.items():
        if not VARIABLE.fullmatch(name):
            message, hint = f"{name!r} cannot be the name of a variable", "letters, digits and _, a digit not first"
            yield Problem(message=message, path=f"{path}.{name}", hint=hint)
        elif "\0" in value:
            yield Problem(message="its value holds a zero byte, which no variable can", path=f"{path}.{name}")


def check_pool(pool: ServerPool, path: str) -> Iterator[Problem]:
    """Values of a pool of servers outside their range."""
    counts = ("replicas", "tensor", "max_num_seqs", "max_tokens")
    yield from check_ranges(pool, path, [(name, AT_LEAST_ONE) for name in counts])
    yield from check_ranges(pool, path, [("memory_share", SHARE_ABOVE_ZERO)])


def _check_resources(resources: Resources) -> Iterator[Problem]:
    counts = ("num_nodes", "max_nodes", "cpus", "memory", "max_parallel_stages")
    yield from check_ranges(resources, "resources", [(name, AT_LEAST_ONE) for name in counts])
    yield from check_ranges(resources, "resources", [("max_hourly_cost", POSITIVE), ("price", NOT_NEGATIVE)])
    if resources.num_nodes is not None and resources.num_nodes > resources.max_nodes:
        message = f"asks for {resources.num_nodes} nodes, but max_nodes is {resources.max_nodes}"
        yield Problem(message=message, path="resources.num_nodes", hint="raise resources.max_nodes")
    if resources.infra is not None and resources.any_of:
        hint = "put every candidate place under any_of"
        yield Problem(message="give either infra or any_of, not both", path="resources.infra", hint=hint)
    yield from check_ranges(resources, "resources", _WAITS)
    yield from check_accelerators(resources.accelerators, "resources.accelerators")
    yield from check_accelerators(resources.quota, "resources.quota")
    for name, most in resources.quota.items():
        if most < 1:
            yield Problem(message=f"must be 1 or more; found {most}", path=f"resources.quota.{name}")
    for index, place in enumerate(resources.any_of):
        yield from _check_place(place, f"resources.any_of[{index}]")


_WAITS = [("lead_time", NOT_NEGATIVE), ("queue_wait", NOT_NEGATIVE), ("billing_granule", POSITIVE)]


def _check_place(place: Place, path: str) -> Iterator[Problem]:
    yield from check_accelerators(place.accelerators, f"{path}.accelerators")
    yield from check_ranges(place, path, [("nodes", AT_LEAST_ONE), ("price", NOT_NEGATIVE), *_WAITS[:2]])
    if place.market == "capacity_block" and place.price is None:
        hint = "add  price: $3.10/h  (of one accelerator), as the provider quotes it for the block"
        yield Problem(message="a capacity block has no list price", path=f"{path}.market", hint=hint)


def check_accelerators(names: Iterable[str], path: str) -> Iterator[Problem]:
    """Accelerators are spelled `TYPE` or `TYPE:COUNT`; whether the type exists is the catalog's question."""
    for name in names:
        count = name.rpartition(":")[2] if ":" in name else "1"
        if not ACCELERATOR.fullmatch(name) or int(count) < 1:
            hint = "write it like H100:8 (8 per node), A100-80GB, or cpu"
            yield Problem(message=f"{name!r} is not an accelerator", path=path, hint=hint)


def _not_served(name: str, project: Project) -> str | None:
    """Return the reason for which no vLLM that Charter starts holds a model; None where it does everywhere."""
    serving = project.serving.get(name)
    if serving is not None and serving.is_by_address:
        return f"{name} is reached by address"
    if serving is not None and serving.pool is not None and serving.pool.engine != "vllm":
        return f"the servers of {name} are of the engine {serving.pool.engine}"
    if {item.partition(":")[0] for item in project.resources.accelerators} == {CPU}:
        return "processors compute in 32 bits"
    for stage_name, stage in project.pipeline.items():
        for role, names in references(stage).items():
            is_served = stage.kind not in TRAINS and (shares_accelerators(stage) or role in ("judge", "also_judges"))
            if name in names and not is_served:
                return f"stage {stage_name} computes with the weights of {name} itself, as its `{role}`"
    return None


def _check_serving(project: Project) -> Iterator[Problem]:
    for name, serving in project.serving.items():
        path = f"serving.{name}"
        if name not in project.models and name not in project.pipeline:
            yield Problem(message=f"no model or stage is called {name!r}", path=path)
        if serving.endpoint is not None and serving.pool is not None:
            hint = "leave endpoint out where Charter starts the servers, or pool where they run elsewhere"
            yield Problem(message="gives an endpoint and a pool", path=path, hint=hint)
        if serving.endpoint is not None:
            yield from _check_address(serving.endpoint, f"{path}.endpoint")
        if serving.pool is not None:
            yield from check_pool(serving.pool, f"{path}.pool")
        if serving.also_endpoints and serving.endpoint is None:
            hint = "give the first address as endpoint"
            yield Problem(
                message="adds addresses to an endpoint that is not given", path=f"{path}.also_endpoints", hint=hint
            )
        for index, address in enumerate(serving.also_endpoints):
            yield from _check_address(address, f"{path}.also_endpoints[{index}]")
        if serving.api_key is not None and not REFERENCE.fullmatch(serving.api_key):
            hint = f"write  api_key: env:{name.upper().replace('-', '_')}_API_KEY  or  file:~/.keys/{name}"
            message = "is not env:NAME or file:PATH; a key itself is never written into a project (and not shown here)"
            yield Problem(message=message, path=f"{path}.api_key", hint=hint)
        yield from _check_endpoint_price(serving, path)


def _check_address(address: str, path: str) -> Iterator[Problem]:
    """An address of a server holds no credentials: it is printed, logged and recorded."""
    if not _is_url(address):
        yield Problem(message=f"{address!r} is not a URL", path=path, hint="write it like http://judge:8000/v1")
    elif "@" in address.split("/")[2] or "?" in address:
        hint = "give the key by  api_key: env:NAME"
        yield Problem(message="an address must not hold a user, a key or a query", path=path, hint=hint)


def _is_url(address: str) -> bool:
    try:
        port = urlsplit(address).port
    except ValueError:
        return False
    return port != 0 and re.fullmatch(r"https?://[^/\s]+\S*", address) is not None


def _check_ledger(address: str | None) -> Iterator[Problem]:
    """A database's address names a user at most: it is printed, logged and recorded."""
    path, hint = "storage.ledger", "write it like postgresql://HOST/DATABASE; give a password by PGPASSFILE (~/.pgpass)"
    if address is None:
        return
    if not re.match(r"postgresql://[^/\s]*/[^/\s?]+", address):
        yield Problem(message="is not the address of a PostgreSQL database", path=path, hint=hint)
    elif ":" in address.split("/")[2].rpartition("@")[0] or "password=" in address:
        yield Problem(message="an address must not hold a password", path=path, hint=hint)


def _check_endpoint_price(serving: Serving, path: str) -> Iterator[Problem]:
    """Prices come in pairs; `auto` needs something to compare."""
    price = (serving.usd_per_million_input_tokens, serving.usd_per_million_output_tokens)
    if (price[0] is None) != (price[1] is None):
        yield Problem(message="give the price of input and of output tokens, or neither", path=path)
    if serving.mode == "auto" and (serving.endpoint is None or None in price):
        hint = "give endpoint, usd_per_million_input_tokens and usd_per_million_output_tokens"
        yield Problem(message="auto compares an endpoint with own accelerators", path=f"{path}.mode", hint=hint)
    prices = [name for name in vars(serving) if "usd_per_million" in name]
    yield from check_ranges(serving, path, [(name, NOT_NEGATIVE) for name in prices])
    yield from check_ranges(serving, path, [("cached_prompt_share", SHARE), ("concurrency", AT_LEAST_ONE)])
    yield from check_ranges(serving, path, [("thinking_tokens", NOT_NEGATIVE)])
    if serving.batch and (serving.endpoint is None or serving.also_endpoints):
        hint = "give the one endpoint whose batch interface takes files of requests"
        yield Problem(message="batch needs an endpoint, and one alone", path=f"{path}.batch", hint=hint)
    if serving.api == "messages" and serving.pool is not None:
        hint = "leave api out: servers that Charter starts are asked in OpenAI's words"
        yield Problem(message="messages is the API of an endpoint, not of a pool", path=f"{path}.api", hint=hint)
    yield from check_ranges(serving, path, [("batch_price", SHARE)])
    positive = ("requests_per_minute", "tokens_per_minute", "request_timeout", "batch_poll")
    yield from check_ranges(serving, path, [(name, POSITIVE) for name in positive])
    yield from check_ranges(serving, path, [("max_attempts", AT_LEAST_ONE)])


def check_model(name: str, model: ModelSpec) -> Iterator[Problem]:
    """Problems of one entry of `models`."""
    path = f"models.{name}"
    yield from check_name(name, path)
    if (model.model is None) == (model.architecture is None):
        given_parts = "neither" if model.model is None else "both"
        hint = "model: a catalog name or a path; architecture: the sizes of a model that is made from scratch"
        yield Problem(message=f"give either model or architecture; found {given_parts}", path=path, hint=hint)
    if model.model is not None and not model.model.strip():
        yield Problem(message="is empty; name a model", path=f"{path}.model")
    if model.architecture is not None:
        yield from check_architecture(model.architecture, f"{path}.architecture")
    if model.tokenizer is not None:
        yield from _check_tokenizer(model, f"{path}.tokenizer")


def _check_tokenizer(model: ModelSpec, path: str) -> Iterator[Problem]:
    assert model.tokenizer is not None
    size = model.tokenizer.vocab_size
    if not model.tokenizer.train_on:
        yield Problem(message="names no data set", path=f"{path}.train_on")
    if size <= BYTE_ALPHABET:
        message = f"must be greater than {BYTE_ALPHABET}, the bytes that are tokens anyway; found {size}"
        yield Problem(message=message, path=f"{path}.vocab_size")
    if model.architecture is None:
        hint = "a model that is loaded brings its own tokenizer; remove this block"
        yield Problem(message="needs an inline architecture", path=path, hint=hint)
    elif size > model.architecture.vocab_size:
        message = f"{size} tokens do not fit the architecture's vocab_size of {model.architecture.vocab_size}"
        yield Problem(message=message, path=f"{path}.vocab_size")


def check_data(name: str, data: DataSpec) -> Iterator[Problem]:
    """Problems of one entry of `data`."""
    path = f"data.{name}"
    yield from check_name(name, path)
    if not data.path.strip():
        yield Problem(message="is empty; name a JSONL file", path=f"{path}.path")
    ranges = [("limit", AT_LEAST_ONE), ("rows", AT_LEAST_ONE), ("mean_tokens", POSITIVE)]
    yield from check_ranges(data, path, ranges)
    if data.part is not None:
        try:
            parse_part(data.part)
        except ValueError as error:
            yield Problem(message=str(error), path=f"{path}.part")


def parse_part(text: str) -> tuple[int, int]:
    """The numbers of a part: `1/2` is (1, 2), the first of two.

    >>> parse_part("1/2")
    (1, 2)
    """
    match = PART.fullmatch(text.strip())
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise ValueError(f"{text!r} is not a part; write 1/2 and 2/2 for the two halves, 1/4 to 4/4 for quarters")
    return index, count
