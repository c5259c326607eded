"""Tiny models and tokenizers that tests of several folders build."""

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

N_BLOCKS = 4


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token for each byte: small, and total on every text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def tiny_llama(seed: int = 0, **overrides: object) -> transformers.LlamaForCausalLM:
    """Four random blocks in which every weight matters."""
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=N_BLOCKS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.15,
        **overrides,
    )
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(config).eval()


def save(model: transformers.PreTrainedModel, folder: object) -> str:
    """Write a model and the byte tokenizer as a Hugging Face folder."""
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)
