"""Names people write for accelerators -> catalog names. Keys are in `plain` form.

SkyPilot's names first (`H100`, `A100-80GB`, `tpu-v5e`), then those of result tables (`H100-80GB`, `V100-SXM-32GB`).
A bare family name means the variant that SkyPilot rents under it.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache


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


def closest(name: str, names: Iterable[str], *, limit: int = 3) -> str:
    """`; did you mean A, B?` for a name that is nearly a known one, else nothing.

    >>> closest("H10O", ["H100", "A100"])
    '; did you mean H100?'
    """
    near = _closest(name, tuple(names), limit)
    return f"; did you mean {', '.join(near)}?" if near else ""


@lru_cache(maxsize=1024)
def _closest(name: str, names: tuple[str, ...], limit: int) -> tuple[str, ...]:
    spelled = {item.casefold(): item for item in names}
    near = get_close_matches(name.casefold(), list(spelled), n=limit, cutoff=0.6)
    return tuple(spelled[item] for item in near)
