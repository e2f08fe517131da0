"""What other projects' readers find in exported data sets: webdataset, datasets and NVIDIA DALI on a processor.

Runs in `.engines/dali`: `python probe_shards.py DIRECTORY`, where DIRECTORY holds one export per format.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_DATASETS_OFFLINE"] = "1"
BATCH = 3


def by_webdataset(directory):
    import webdataset

    shards = [str(path) for path in sorted(directory.glob("*.tar"))]
    found = []
    for sample in webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).decode():
        row = {name: value for name, value in sample["json"].items() if value is not None}
        found.append({**row, **({"text": sample["txt"]} if "txt" in sample else {})})
    return found


def by_datasets(directory, cache):
    from datasets import load_dataset

    if list(directory.glob("*.jsonl")):
        made = load_dataset("json", data_files=str(directory / "train.jsonl"), cache_dir=cache)
    else:
        made = load_dataset(str(directory), cache_dir=cache)
    return {"rows": list(made["train"]), "splits": sorted(made)}


def by_dali(directory, extensions, *, with_index, shard=0, shards=1):
    """Bytes of every component, sample by sample, through a pipeline without a device."""
    import numpy as np
    from nvidia.dali import Pipeline, fn, types

    paths = sorted(str(path) for path in directory.glob("*.tar"))
    indexes = {"index_paths": [path.removesuffix(".tar") + ".idx" for path in paths]} if with_index else {}
    pipeline = Pipeline(batch_size=BATCH, num_threads=1, device_id=None)
    with pipeline:
        outputs = fn.readers.webdataset(
            paths=paths,
            ext=extensions,
            dtypes=[types.UINT8] * len(extensions),
            shard_id=shard,
            num_shards=shards,
            name="reader",
            pad_last_batch=True,
            missing_component_behavior="empty",
            **indexes,
        )
        pipeline.set_outputs(*(outputs if isinstance(outputs, list | tuple) else [outputs]))
    pipeline.build()
    meta = pipeline.reader_meta("reader")
    found = []
    for _ in range(-(-meta["epoch_size_padded"] // shards // BATCH)):
        batches = pipeline.run()
        for place in range(BATCH):
            found.append([bytes(np.asarray(batch[place])).decode() for batch in batches])
    return {"size": meta["epoch_size"], "samples": found}


def main(root):
    cache = str(root / "cache")
    told = {
        "webdataset": by_webdataset(root / "webdataset"),
        "texts": by_webdataset(root / "texts"),
        "datasets": {name: by_datasets(root / name, cache) for name in ("jsonl", "parquet", "hf")},
        "dali": by_dali(root / "webdataset", ["json"], with_index=True),
        "dali_without_index": by_dali(root / "webdataset", ["json"], with_index=False),
        "dali_texts": by_dali(root / "texts", ["json", "txt"], with_index=True),
        "dali_halves": [by_dali(root / "webdataset", ["json"], with_index=True, shard=n, shards=2) for n in (0, 1)],
    }
    (root / "found.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
