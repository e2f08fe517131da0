"""Names people write for accelerators -> catalog names. Keys are in `plain` form.

SkyPilot's names first (`H100`, `A100-80GB`, `tpu-v5e`), then those of result tables (`H100-80GB`, `V100-SXM-32GB`).
A bare family name means the variant that SkyPilot rents under it.
"""


def plain(name: str) -> str:
    """A name without case, vendor and separators.

    >>> plain("NVIDIA H100-SXM-80GB")
    'h100sxm80gb'
    """
    short = name.casefold().strip()
    for vendor in ("nvidia ", "nvidia-", "amd ", "amd-", "google ", "aws ", "intel "):
        short = short.removeprefix(vendor)
    return "".join(letter for letter in short if letter.isalnum())


_SPELLINGS = {
    "V100-SXM2-16GB": ("V100", "V100-16GB", "V100-SXM-16GB", "V100-SXM2"),
    "V100-SXM2-32GB": ("V100-32GB", "V100-SXM-32GB"),
    "T4": ("Tesla T4",),
    "A100-SXM-40GB": ("A100", "A100-40GB", "A100-SXM", "A100-SXM4-40GB"),
    "A100-SXM-80GB": ("A100-80GB", "A100-SXM4-80GB", "A100-80GB-SXM"),
    "A100-PCIe-40GB": ("A100-PCIe", "A100-40GB-PCIe"),
    "A100-PCIe-80GB": ("A100-80GB-PCIe",),
    "A800-SXM-80GB": ("A800", "A800-80GB"),
    "H100-SXM-80GB": ("H100", "H100-80GB", "H100-SXM", "H100-SXM5", "H100-80GB-SXM", "H100-80GB-HBM3", "H100-MEGA"),
    "H100-PCIe-80GB": ("H100-PCIe", "H100-80GB-PCIe"),
    "H100-NVL-94GB": ("H100-NVL", "H100-94GB"),
    "H800-SXM-80GB": ("H800", "H800-80GB"),
    "H200-SXM-141GB": ("H200", "H200-141GB", "H200-SXM"),
    "H20-96GB": ("H20",),
    "B200-SXM-180GB": ("B200", "B200-180GB", "B200-SXM", "B200-192GB"),
    "GB200-NVL72-186GB": ("GB200", "GB200-NVL72"),
    "B300-SXM-288GB": ("B300", "B300-288GB", "B300-SXM"),
    "GH200-96GB": ("GH200",),
    "GB300": ("GB300-NVL72", "GB300-288GB"),
    "RTX3090": ("GeForce RTX 3090", "3090"),
    "RTX4090": ("GeForce RTX 4090", "4090"),
    "RTX-PRO-6000-Blackwell": ("RTX6000Pro", "RTXPRO6000", "RTX-PRO-6000"),
    "MI250X-128GB": ("MI250X", "MI250"),
    "MI300X-192GB": ("MI300X",),
    "MI325X-256GB": ("MI325X",),
    "MI355X-288GB": ("MI355X",),
    "TPU-v3": ("v3",),
    "TPU-v4": ("v4",),
    "TPU-v5e": ("v5e", "v5litepod", "tpu-v5litepod", "TPU-v5-lite"),
    "TPU-v5p": ("v5p",),
    "TPU-v6e": ("v6e", "Trillium"),
    "TPU7x": ("TPU-v7", "TPU-v7x", "Ironwood"),
    "Trainium1": ("Trainium", "Trn1"),
    "Trainium2": ("Trn2",),
    "Trainium3": ("Trn3",),
    "Gaudi2-96GB": ("Gaudi2",),
    "Gaudi3-128GB": ("Gaudi3",),
    "Ascend-910B": ("910B",),
    "Ascend-910C": ("910C",),
}

ACCELERATOR_ALIASES = {plain(alias): name for name, aliases in _SPELLINGS.items() for alias in aliases}
"""Plain alias -> catalog name."""

SPELLINGS = tuple(alias for aliases in _SPELLINGS.values() for alias in aliases)
"""The aliases as people write them, for suggestions."""
