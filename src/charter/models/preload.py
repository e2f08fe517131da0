"""Imports of any model's loading, done at once: a process that is forked afterwards need not repeat them.

The transformers package imports its parts at their first use, which takes longer than loading a small model.
"""

import transformers.loss.loss_utils
import transformers.modeling_layers
import transformers.modeling_utils
import transformers.models.auto.modeling_auto
import transformers.models.llama.modeling_llama
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

LOADED = (AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, transformers)
"""Names that are imported when they are asked for."""
