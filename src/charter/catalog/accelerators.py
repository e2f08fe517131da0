"""Accelerators: memory, peak rates and links, each with source, date and confidence.

The table prints data-sheet units; here everything is in bytes, flops per second and bytes per second. What the
loader does about the traps of data sheets:

- Peak rates are dense; vendors' 2:4-sparse headlines were halved when the table was made.
- `memory_bytes` is what the device itself reports (`memory_reported.csv`) where that is known, else the data sheet's
  number as *decimal* GB, which is the smaller reading: a plan errs on the side of not fitting.
- Links are printed as both directions together; here they are per direction (half).
- A package of two devices (MI250, MI250X) is loaded as its devices: half the memory, half the rate, twice per node.
- Network cards belong to the instance of a cloud; `scaleout_bytes_per_second_per_node` is the reference node's.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, lru_cache
from types import MappingProxyType

from charter.catalog.rows import Provenance, TableRow, read_table
from charter.errors import UsageError
from charter.units import GB, MIB, TERA

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
DEVICES_PER_PACKAGE = {"MI250-128GB": 2, "MI250X-128GB": 2}
CPU = "cpu"
BITS_PER_BYTE = 8


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One accelerator as a framework sees it, or the host's processors (`kind == "cpu"`)."""

    name: str
    vendor: str
    form_factor: str
    kind: str
    """`gpu`, `tpu`, `asic` or `cpu`."""
    memory_bytes: float
    """What the device reports; the context and buffers of the driver still come off it."""
    memory_bytes_per_second: float
    dense_flops_per_second: Mapping[str, float] = field(hash=False)
    """Peak by dtype, dense: fp32, tf32, fp16, bf16, fp8, int8, fp4."""
    scaleup_link: str
    scaleup_bytes_per_second: float
    """Per device and direction, inside the scale-up domain."""
    scaleup_domain: int
    """Devices that the fast link joins."""
    devices_per_node: int
    scaleout_bytes_per_second_per_node: float | None
    tdp_watts: float | None
    year: int
    memory_is_reported: bool
    provenance: Provenance
    memory_provenance: Provenance
    matmul_ceiling: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Highest measured share of the dense peak in a matrix product, by dtype; empty where nobody measured."""

    @property
    def has_bf16(self) -> bool:
        """Return True if it multiplies in bf16; processors without such products compute them in fp32."""
        return "bf16" in self.dense_flops_per_second or self.kind == CPU

    def peak_flops_per_second(self, dtype: str) -> float:
        """Dense peak of a dtype; a dtype the device lacks runs at the next one it has (bf16 on V100 as fp16).

        >>> get("H100").peak_flops_per_second("bf16") / 1e12
        989.4
        """
        for name in (dtype, *_FALLBACKS.get(dtype, ())):
            if name in self.dense_flops_per_second:
                return self.dense_flops_per_second[name]
        dtypes = ", ".join(self.dense_flops_per_second)
        raise UsageError(f"{self.name} has no known peak rate for {dtype}; it has {dtypes}")


_FALLBACKS = {
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "fp8": ("bf16", "fp16", "fp32"),
    "int4": ("bf16", "fp16", "fp32"),
    "tf32": ("fp32", "bf16"),
    "fp32": ("tf32", "bf16", "fp16"),
}


def get(name: str) -> Accelerator:
    """The accelerator of a catalog name or of a name people write (`H100`, `A100-80GB`, `tpu-v5e`).

    >>> get("H100-80GB").name, get("A100").name, get("tpu-v5e").name
    ('H100-SXM-80GB', 'A100-SXM-40GB', 'TPU-v5e')
    """
    table = _by_plain_name()
    key = plain(name)
    key = ACCELERATOR_ALIASES.get(key, key)
    entry = table.get(plain(key))
    if entry is not None:
        return entry
    if plain(name) == CPU:
        raise UsageError("the processors of this machine have no catalog row; probe them and call processor()")
    spelled = [*(item.name for item in catalog()), *SPELLINGS, CPU]
    raise UsageError(f"no accelerator is called {name!r}{closest(name, spelled)} (`charter catalog gpus` lists all)")


def others_called(name: str) -> tuple[str, ...]:
    """Return the catalog names that a name could mean as well: those that have all words of it.

    >>> others_called("A100"), others_called("A100-80GB"), others_called("A100-SXM-80GB"), others_called("L40")
    (('A100-PCIe-40GB', 'A100-PCIe-80GB', 'A100-SXM-80GB'), ('A100-PCIe-80GB',), (), ())
    """
    meant, words = get(name).name, set(name.casefold().split("-"))
    if plain(name) == plain(meant):
        return ()
    return tuple(
        item.name for item in catalog() if item.name != meant and words <= set(item.name.casefold().split("-"))
    )


def usual_request(text: str) -> str:
    """Return how Charter writes a request that names the number first; any other text as it is.

    >>> usual_request("4x4090"), usual_request("8 x H100"), usual_request("H100*2"), usual_request("H100:8")
    ('4090:4', 'H100:8', 'H100:2', 'H100:8')
    >>> usual_request("a100x8"), usual_request("RTX4090")
    ('a100:8', 'RTX4090')
    """
    number_first = re.fullmatch(r"(\d+)(?:\s*[x*]\s*|\s+)(\S+)", text.strip(), re.IGNORECASE)
    if number_first:
        return f"{number_first[2]}:{number_first[1]}"
    number_last = re.fullmatch(r"(\S+?)(?:\s*[*]\s*|\s+x\s*)(\d+)", text.strip(), re.IGNORECASE)
    if number_last:
        return f"{number_last[1]}:{number_last[2]}"
    joined = re.fullmatch(r"(\S+)x(\d+)", text.strip(), re.IGNORECASE)
    return f"{joined[1]}:{joined[2]}" if joined and is_named(joined[1]) else text


def is_named(name: str) -> bool:
    """Return whether an accelerator has this name, as `get` reads it."""
    return plain(ACCELERATOR_ALIASES.get(plain(name), plain(name))) in _by_plain_name()


def parse_request(text: str) -> tuple[str, int]:
    """Name and count of `H100:8` (SkyPilot's spelling); the name is resolved, `cpu` stays `cpu`.

    >>> parse_request("H100:8"), parse_request("L4"), parse_request("cpu:4")
    (('H100-SXM-80GB', 8), ('L4', 1), ('cpu', 4))
    """
    if text.strip().isdecimal():
        raise UsageError(f"{text!r} is a number of accelerators of no type; write both, like H100:{text.strip()}")
    if usual_request(text) != text:
        raise UsageError(f"{text!r}: the type comes first, so write {usual_request(text)}")
    name, _, count = text.partition(":")
    if "," in text:
        raise UsageError(f"{text!r}: is several types; one is written like H100:8")
    if count.isdecimal() and int(count) < 1:
        raise UsageError(f"{text!r}: give 1 accelerator or more, like {name}:8")
    if count and not count.isdecimal():
        raise UsageError(f"{text!r}: after the colon comes a number of accelerators, like H100:8")
    resolved = CPU if plain(name) == CPU else get(name).name
    return resolved, int(count or 1)


def processor(
    *,
    flops_per_second: float,
    memory_bytes_per_second: float,
    memory_bytes: float,
    cores: int,
    source: str = "probe of this machine",
) -> Accelerator:
    """The processors of a machine as one accelerator, from measured figures, so that a local run can be planned.

    `flops_per_second` is a measured fp32 matrix product on all threads of the run, so its ceiling is 1.

    >>> processor(flops_per_second=1e11, memory_bytes_per_second=2e10, memory_bytes=8e9, cores=2).kind
    'cpu'
    """
    provenance = Provenance(source=source, as_of="now", confidence="measured here")
    return Accelerator(
        name=CPU,
        vendor="host",
        form_factor=f"{cores} cores",
        kind=CPU,
        memory_bytes=memory_bytes,
        memory_bytes_per_second=memory_bytes_per_second,
        dense_flops_per_second=MappingProxyType({"fp32": flops_per_second}),
        scaleup_link="shared memory",
        scaleup_bytes_per_second=memory_bytes_per_second / 2,
        scaleup_domain=1,
        devices_per_node=1,
        scaleout_bytes_per_second_per_node=None,
        tdp_watts=None,
        year=0,
        memory_is_reported=True,
        provenance=provenance,
        memory_provenance=provenance,
        matmul_ceiling=MappingProxyType({"fp32": 1.0}),
    )


@cache
def catalog() -> tuple[Accelerator, ...]:
    """Every accelerator of the bundled table."""
    reported = dict(read_table("memory_reported.csv", _reported))
    ceilings = matmul_ceilings()
    return read_table("accelerators.csv", lambda row: _accelerator(row, reported, ceilings))


@cache
def _by_plain_name() -> Mapping[str, Accelerator]:
    return {plain(item.name): item for item in catalog()}


def _reported(row: TableRow) -> tuple[str, tuple[float, Provenance]]:
    return row.text("accelerator"), (row.positive("reported_mib") * MIB, row.provenance())


@dataclass(frozen=True, kw_only=True)
class MatmulCeiling:
    """The best measured matrix product of a device: an upper bound for any model on it."""

    accelerator: str
    dtype: str
    flops_per_second: float
    theoretical_flops_per_second: float
    provenance: Provenance


@cache
def matmul_ceilings() -> tuple[MatmulCeiling, ...]:
    """Measured ceilings, under the names of their source."""
    return read_table("matmul_ceilings.csv", _ceiling)


def _ceiling(row: TableRow) -> MatmulCeiling:
    measured, theoretical = row.positive("measured_tflops"), row.positive("theoretical_tflops")
    if measured > theoretical:
        raise row.problem("measured_tflops", f"{measured} is above the theoretical {theoretical}")
    return MatmulCeiling(
        accelerator=row.text("accelerator"),
        dtype=row.text("dtype"),
        flops_per_second=measured * TERA,
        theoretical_flops_per_second=theoretical * TERA,
        provenance=row.provenance(),
    )


_CEILING_NAMES = {  # name in matmul_ceilings.csv -> catalog names
    "A100-SXM": ("A100-SXM-40GB", "A100-SXM-80GB", "A800-SXM-80GB"),
    "A100-PCIe": ("A100-PCIe-40GB", "A100-PCIe-80GB"),
    "H100-SXM/H200": ("H100-SXM-80GB", "H800-SXM-80GB", "H200-SXM-141GB"),
    "H100-SXM": ("H100-SXM-80GB", "H800-SXM-80GB"),
    "H200-SXM": ("H200-SXM-141GB",),
    "GH200": ("GH200-96GB",),
    "B200-SXM": ("B200-SXM-180GB",),
    "B300-SXM": ("B300-SXM-288GB",),
    "GB200": ("GB200-NVL72-186GB",),
    "MI300X": ("MI300X-192GB",),
    "MI325X": ("MI325X-256GB",),
    "MI355X": ("MI355X-288GB",),
    "Gaudi2": ("Gaudi2-96GB",),
    "Gaudi3": ("Gaudi3-128GB",),
}


def _ceilings_of(name: str, ceilings: tuple[MatmulCeiling, ...]) -> Mapping[str, float]:
    mine = (item for item in ceilings if name in _CEILING_NAMES[item.accelerator])
    return MappingProxyType({item.dtype: item.flops_per_second / item.theoretical_flops_per_second for item in mine})


def _accelerator(
    row: TableRow, reported: Mapping[str, tuple[float, Provenance]], ceilings: tuple[MatmulCeiling, ...]
) -> Accelerator:
    name = row.text("accelerator")
    packed = DEVICES_PER_PACKAGE.get(name, 1)
    provenance = row.provenance("source_note")
    sheet_bytes = row.positive("memory_gb") * GB
    memory_bytes, memory_provenance = reported.get(name, (sheet_bytes, provenance))
    peaks = {dtype: row.positive_or_none(_PEAK_COLUMNS[dtype]) for dtype in DTYPES}
    if not any(peaks.values()):
        raise row.problem("bf16_tflops", "no peak rate at all")
    scaleout = row.positive_or_none("scaleout_gbit_s_per_node")
    return Accelerator(
        name=name,
        vendor=row.text("vendor"),
        form_factor=row.text("form_factor"),
        kind=_kind(row.text("vendor"), name),
        memory_bytes=memory_bytes / packed,
        memory_bytes_per_second=row.positive("mem_bw_gb_s") * GB / packed,
        dense_flops_per_second=MappingProxyType({d: v * TERA / packed for d, v in peaks.items() if v}),
        scaleup_link=row.text("scaleup_link"),
        scaleup_bytes_per_second=row.positive("scaleup_gb_s_bidir") * GB / 2 / packed,
        scaleup_domain=int(row.positive_or_none("scaleup_domain") or 1) * packed,
        devices_per_node=int(row.positive_or_none("typical_devices_per_node") or 1) * packed,
        scaleout_bytes_per_second_per_node=scaleout * GB / BITS_PER_BYTE if scaleout else None,
        tdp_watts=row.positive_or_none("tdp_w"),
        year=int(row.positive("year")),
        memory_is_reported=name in reported,
        provenance=provenance,
        memory_provenance=memory_provenance,
        matmul_ceiling=_ceilings_of(name, ceilings),
    )


_PEAK_COLUMNS = {dtype: f"{dtype}_{'tops' if dtype == 'int8' else 'tflops'}" for dtype in DTYPES}


def _kind(vendor: str, name: str) -> str:
    if name.startswith("TPU"):
        return "tpu"
    return "gpu" if vendor in ("NVIDIA", "AMD") else "asic"


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """A name without case, vendor and separators.

    >>> plain("NVIDIA H100-SXM-80GB")
    'h100sxm80gb'
    """
    short = name.casefold().strip()
    for vendor in (
        "nvidia ",
        "nvidia-",
        "amd ",
        "amd-",
        "google ",
        "cloud ",
        "aws ",
        "intel ",
        "huawei ",
        "instinct ",
        "tesla ",
        "tesla-",
    ):
        short = short.removeprefix(vendor)
    return "".join(letter for letter in short if letter.isalnum())


_SPELLINGS = {
    "P100-SXM2-16GB": ("P100", "P100-16GB", "Tesla P100"),
    "V100-SXM2-16GB": ("V100", "V100-16GB", "V100-SXM-16GB", "V100-SXM2", "Tesla V100"),
    "V100-SXM2-32GB": ("V100-32GB", "V100-SXM-32GB", "V100-SXM3-32GB"),
    "V100-PCIe-16GB": ("V100-PCIe", "V100-16GB-PCIe"),
    "V100-PCIe-32GB": ("V100-32GB-PCIe",),
    "T4": ("Tesla T4",),
    "A100-SXM-40GB": ("A100", "A100-40GB", "A100-SXM", "A100-SXM4-40GB"),
    "A100-SXM-80GB": ("A100-80GB", "A100-SXM4-80GB", "A100-80GB-SXM"),
    "A100-PCIe-40GB": ("A100-PCIe", "A100-40GB-PCIe"),
    "A100-PCIe-80GB": ("A100-80GB-PCIe",),
    "A800-SXM-80GB": ("A800", "A800-80GB", "A800-SXM", "A800-SXM4-80GB"),
    "A800-PCIe-80GB": ("A800-PCIe", "A800-80GB-PCIe"),
    "H100-SXM-80GB": ("H100", "H100-80GB", "H100-SXM", "H100-SXM5", "H100-80GB-SXM", "H100-80GB-HBM3", "H100-MEGA"),
    "H100-PCIe-80GB": ("H100-PCIe", "H100-80GB-PCIe"),
    "H100-NVL-94GB": ("H100-NVL", "H100-94GB"),
    "H800-SXM-80GB": ("H800", "H800-80GB", "H800-SXM", "H800-SXM5"),
    "H800-PCIe-80GB": ("H800-PCIe", "H800-80GB-PCIe"),
    "H200-SXM-141GB": ("H200", "H200-141GB", "H200-SXM", "H200-SXM5", "H200-SXM5-141GB"),
    "H200-NVL-141GB": ("H200-NVL",),
    "H20-96GB": ("H20",),
    "B200-SXM-180GB": ("B200", "B200-180GB", "B200-SXM", "B200-192GB"),
    "GB200-NVL72-186GB": ("GB200", "GB200-NVL72"),
    "B300-SXM-288GB": ("B300", "B300-288GB", "B300-SXM"),
    "B100-SXM-192GB": ("B100",),
    "GB10": ("DGX Spark", "GB10-128GB"),
    "GH200-96GB": ("GH200", "GH200-Superchip", "GH200-480GB"),
    "GH200-144GB": ("GH200-141GB",),
    "GB300": ("GB300-NVL72", "GB300-288GB"),
    "RTX2080Ti": ("GeForce RTX 2080 Ti", "2080 Ti", "RTX2080Ti-11GB"),
    "Titan-RTX": ("TITAN RTX 24GB", "RTX Titan"),
    "Quadro-RTX-6000-24GB": ("Quadro RTX 6000", "RTX6000-24GB"),
    "Quadro-RTX-8000-48GB": ("Quadro RTX 8000", "RTX 8000", "RTX8000-48GB"),
    "RTX3060": ("GeForce RTX 3060", "3060", "RTX3060-12GB"),
    "RTX3070": ("GeForce RTX 3070", "3070", "RTX3070-8GB"),
    "RTX3080": ("GeForce RTX 3080", "3080", "RTX3080-10GB"),
    "RTX3090": ("GeForce RTX 3090", "3090", "RTX3090-24GB"),
    "RTX3090Ti": ("GeForce RTX 3090 Ti", "3090 Ti"),
    "RTX4080": ("GeForce RTX 4080", "4080", "RTX4080-16GB"),
    "RTX4090": ("GeForce RTX 4090", "4090", "RTX4090-24GB"),
    "RTX5080": ("GeForce RTX 5080", "5080", "RTX5080-16GB"),
    "RTX5090": ("GeForce RTX 5090", "5090", "RTX5090-32GB"),
    "RTX-A4000": ("A4000", "RTXA4000-16GB", "A4000-16GB"),
    "RTX-A5000": ("A5000", "RTXA5000-24GB", "A5000-24GB"),
    "RTX-A6000": ("A6000", "RTXA6000-48GB", "A6000-48GB"),
    "RTX-6000-Ada": ("RTX6000Ada", "RTX 6000 Ada Generation", "RTX6000-48GB", "6000 Ada", "RTX6000Ada-48GB"),
    "RTX-PRO-6000-Blackwell": (
        "RTX6000Pro",
        "RTXPRO6000",
        "RTX-PRO-6000",
        "RTX6000Pro-96GB",
        "RTX PRO 6000 Server Edition",
        "RTX PRO 6000 Blackwell Server Edition",
    ),
    "A10": ("A10-24GB",),
    "A10G": ("A10G-24GB",),
    "A30": ("A30-24GB",),
    "A40": ("A40-48GB",),
    "L4": ("L4-24GB",),
    "L40": ("L40-48GB",),
    "L40S": ("L40S-48GB",),
    "MI100-32GB": ("MI100",),
    "MI210-64GB": ("MI210",),
    "MI250-128GB": ("MI250",),
    "MI250X-128GB": ("MI250X",),
    "MI300A-128GB": ("MI300A",),
    "MI300X-192GB": ("MI300X",),
    "MI325X-256GB": ("MI325X",),
    "MI350X-288GB": ("MI350X", "MI350"),
    "MI355X-288GB": ("MI355X", "MI355"),
    "TPU-v2": ("v2",),
    "TPU-v3": ("v3",),
    "TPU-v4": ("v4",),
    "TPU-v5e": ("v5e", "v5litepod", "tpu-v5litepod", "TPU-v5-lite", "TPU-v5"),
    "TPU-v5p": ("v5p",),
    "TPU-v6e": ("v6e", "Trillium"),
    "TPU7x": ("TPU-v7", "TPU-v7x", "TPU-7x", "Ironwood"),
    "Trainium1": ("Trainium", "Trn1"),
    "Trainium2": ("Trn2",),
    "Trainium3": ("Trn3",),
    "Gaudi2-96GB": ("Gaudi2", "HL-225"),
    "Gaudi3-128GB": ("Gaudi3", "HL-325"),
    "Inferentia2": ("Inf2",),
    "Ascend-910A": ("910A", "Ascend 910", "910"),
    "Ascend-910B": ("910B", "Ascend-910B-64GB", "910B1", "910B2", "910B3", "910B4", "Ascend-910B3", "Ascend-910B4"),
    "Ascend-910C": ("910C",),
}

ACCELERATOR_ALIASES = {plain(alias): name for name, aliases in _SPELLINGS.items() for alias in aliases}
"""Plain alias -> catalog name."""

SPELLINGS = tuple(alias for aliases in _SPELLINGS.values() for alias in aliases)
"""The aliases as people write them, for suggestions."""


def closest(name: str, names: Iterable[str]) -> str:
    """`; did you mean A, B?` for a name that is nearly a known one, else nothing.

    >>> closest("H10O", ["H100", "A100"])
    '; did you mean H100?'
    """
    near = _closest(name, tuple(names))
    return f"; did you mean {', '.join(near)}?" if near else ""


@lru_cache(maxsize=1024)
def _closest(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    spelled = {item.casefold(): item for item in names}
    near = get_close_matches(name.casefold(), list(spelled), n=3, cutoff=0.6)
    return tuple(spelled[item] for item in near)
