from megatron.bridge import AutoBridge
from transformers import AutoTokenizer

INIT = "meta-llama/Llama-3.1-70B"
START = "./start"
TOKENIZER = "./tokenizer"
tokenizer = AutoTokenizer.from_pretrained(INIT)
if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:
    raise SystemExit("the tokenizer needs a padding token that no text holds; it is masked in the loss")
tokenizer.unk_token = tokenizer.pad_token
tokenizer.save_pretrained(TOKENIZER)
AutoBridge.import_ckpt(INIT, START)
