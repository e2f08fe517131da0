"""A project whose stages only count, and the word of its state on a page that is followed."""

import json

FILE = """\
name: counted
models: {base: {architecture: {hidden_size: 64, num_layers: 2, num_heads: 4, intermediate_size: 176, vocab_size: 512,
         max_position_embeddings: 512, tied_embeddings: true}, tokenizer: {train_on: [texts], vocab_size: 512}}}
data: {texts: texts.jsonl, pairs: pairs.jsonl, prompts: prompts.jsonl}
pipeline:
  sft: {kind: sft, init: base, data: [texts], steps: 20, global_batch: 4, seq_len: 64, checkpoint_every: 2}
  pm:  {kind: preference_model, init: sft, data: [pairs], steps: 8, global_batch: 4, seq_len: 64, checkpoint_every: 2}
resources: {infra: local, price: PRICE}
budget: {limit: LIMIT}
"""


def shows(page, state):
    """Wait until the page says so, by itself."""
    from playwright.sync_api import expect

    expect(page.locator("#head .pill")).to_have_text(state)


def project(root, *, price="3.6", limit="$100"):
    root.mkdir(parents=True)
    (root / "charter.yaml").write_text(FILE.replace("PRICE", price).replace("LIMIT", limit))
    turns = [{"role": "user", "content": "When does a kettle boil?"}, {"role": "assistant", "content": "At 100 C."}]
    (root / "texts.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 8)
    (root / "prompts.jsonl").write_text('{"prompt": "How long does rice cook?"}\n' * 8)
    pair = {"prompt": "How long does rice cook?", "chosen": "About twelve minutes.", "rejected": "Never."}
    (root / "pairs.jsonl").write_text((json.dumps(pair) + "\n") * 8)
    return root
