"""Tiny random models of every causal type in transformers, in which every weight matters."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

HIDDEN, HEADS, KV_HEADS, HEAD, INNER, EXPERT, BLOCKS = 32, 4, 2, 8, 48, 24, 4
VOCABULARY, POSITIONS = 128, 128
# Shorter than a test's sequences, so that windows, chunks and top-k selections cut something off.
WINDOW = 8

# A config gets those of these attributes that it has.
SIZES: dict[str, Any] = {
    # the stack
    **dict.fromkeys(["hidden_size", "n_embd", "d_model", "embedding_size"], HIDDEN),
    "hidden_size_global": HIDDEN,
    **dict.fromkeys(["adapter_input_size", "adapter_in_dim", "adapter_out_dim"], HIDDEN),
    **dict.fromkeys(["word_embed_proj_dim", "lru_width", "attention_hidden_size"], HIDDEN),
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers", "num_layers"], BLOCKS),
    **dict.fromkeys(["decoder_layers", "num_decoder_layers", "num_blocks"], BLOCKS),
    **dict.fromkeys(["encoder_layers", "num_encoder_layers"], 2),
    **dict.fromkeys(["vocab_size", "vocab_size_per_layer_input"], VOCABULARY),
    **dict.fromkeys(["max_position_embeddings", "n_positions", "n_ctx"], POSITIONS),
    **dict.fromkeys(["max_seq_len", "context_length"], POSITIONS),
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "type_vocab_size": 2},
    # attention
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads"], HEADS),
    **dict.fromkeys(["attention_heads", "swa_num_attention_heads"], HEADS),
    **dict.fromkeys(["decoder_attention_heads", "encoder_attention_heads"], HEADS),
    **dict.fromkeys(["num_key_value_heads", "swa_num_key_value_heads", "num_kv_heads"], KV_HEADS),
    **dict.fromkeys(["head_dim", "swa_head_dim", "kv_channels", "query_pre_attn_scalar"], HEAD),
    **dict.fromkeys(["rotary_dim", "d_rel"], 4),
    **dict.fromkeys(["sliding_window", "sliding_window_size", "window_size"], WINDOW),
    **dict.fromkeys(["attention_window_size", "local_attention", "rel_extent"], WINDOW),
    **{"index_head_dim": 8, "index_n_heads": 2, "index_topk": WINDOW},
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 8},
    **{"qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "qk_head_dim": 12},
    # feed-forward and experts
    **dict.fromkeys(["intermediate_size", "n_inner", "ffn_dim", "dff"], INNER),
    **dict.fromkeys(["decoder_ffn_dim", "encoder_ffn_dim"], INNER),
    **dict.fromkeys(["ffn_hidden_size", "dense_intermediate_size"], INNER),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], EXPERT),
    **dict.fromkeys(["shared_intermediate_size", "expert_ffn_hidden_size"], EXPERT),
    **dict.fromkeys(["moe_shared_expert_intermediate_size"], EXPERT),
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts"], 4),
    **dict.fromkeys(["moe_num_experts"], 4),
    **dict.fromkeys(["num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"], 2),
    **dict.fromkeys(["n_group", "topk_group", "num_expert_group"], 1),
    **dict.fromkeys(["n_shared_experts", "moe_num_shared_experts", "num_shared_experts"], 1),
    "router_hidden_size": 16,
    # linear attention and state-space layers
    **dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"], HEAD),
    **{
        "linear_num_key_heads": KV_HEADS,
        "linear_num_value_heads": HEADS,
        "linear_num_heads": HEADS,
    },
    **dict.fromkeys(["mamba_d_state", "ssm_state_size", "state_size"], 8),
    **dict.fromkeys(["mamba_n_heads", "mamba_num_heads"], 8),
    **dict.fromkeys(["mamba_d_head", "mamba_head_dim"], 8),
    **dict.fromkeys(["mamba_chunk_size", "chunk_size"], WINDOW),
    **{"mamba_n_groups": 1, "mamba_dt_rank": 4, "time_step_rank": 4},
    # extra streams
    **{"laurel_rank": 8, "hidden_size_per_layer_input": 8, "hc_lowrank": 8},
    # what follows the output embedding, at values that show
    **dict.fromkeys(["final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"], 3.0),
    **{"logit_scale": 0.5, "lm_head_multiplier": 0.5, "logits_scaling": 2.0},
    **{"logits_mup_width_multiplier": 2.0, "unpadded_vocab_size": VOCABULARY - 8},
}

_LINEAR_AND_FULL = ["linear_attention", "full_attention"] * 2
_CONV_AND_FULL = ["conv", "full_attention"] * 2

OVERRIDES: dict[str, dict[str, Any]] = {
    # more than one kind of block
    "bailing_hybrid": {
        "layer_types": _LINEAR_AND_FULL,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    },
    "bamba": {"attn_layer_indices": [1, 3]},
    "deepseek_v2": {"first_k_dense_replace": 1},
    "deepseek_v3": {"first_k_dense_replace": 1},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": _LINEAR_AND_FULL, "q_lora_rank": None},
    "lara_mini": {
        "layer_types": [
            "linear_attention",
            "sliding_attention",
            "full_attention",
            "linear_attention",
        ]
    },
    "lfm2": {"layer_types": _CONV_AND_FULL, "block_multiple_of": 8},
    "lfm2_moe": {"layer_types": _CONV_AND_FULL, "num_dense_layers": 1},
    "minimax": {"layer_types": _LINEAR_AND_FULL, "block_size": WINDOW},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "moe", "mlp"], "n_groups": 1},
    "olmo_hybrid": {"layer_types": _LINEAR_AND_FULL},
    "qwen2_moe": {"mlp_only_layers": [0]},
    "qwen3_5_moe_text": {"layer_types": _LINEAR_AND_FULL},
    "qwen3_5_text": {"layer_types": _LINEAR_AND_FULL},
    "qwen3_moe": {"mlp_only_layers": [0]},
    "qwen3_next": {"layer_types": _LINEAR_AND_FULL, "mlp_only_layers": [1]},
    # later blocks use the keys and values of earlier ones
    "gemma3n_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "intermediate_size": [INNER] * 6,
        "activation_sparsity_pattern": [0.9, 0.9, 0.0, 0.0, 0.0, 0.0],
    },
    "gemma4_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "global_head_dim": HEAD,
    },
    # several blocks hold the same parameters
    "zamba": {
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "attention_hidden_size": 2 * HIDDEN,
        "attention_head_dim": 16,
    },
    "zamba2": {
        "num_hidden_layers": 6,
        "layers_block_type": ["mamba", "hybrid"] * 3,
        "num_mem_blocks": 2,
        "adapter_rank": 8,
        "attention_hidden_size": 2 * HIDDEN,
        "attention_head_dim": 16,
    },
    # blocks that run several times
    "dory": {"num_hidden_layers": 6, "n_input_layers": 2, "n_output_layers": 2},
    "hrm_text": {"num_layers_per_stack": 2},
    "inkling2_loop_text": {
        "num_hidden_layers": 6,
        "loop_layer_index_start": 2,
        "loop_layer_index_end": 4,
        "loop_num_passes": 2,
        "loop_gate_rank": 8,
        "n_layers_per_attn_res_block": 2,
    },
    # hyper-connections
    "deepseek_v4": {"o_groups": 2, "o_lora_rank": 8},
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"] * 2,
        "hc_count": 2,
        "ple_layer_ids": [1],
        "ngram_vocab_size_base": 64,
        "heads_per_ngram": 2,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 2,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": WINDOW,
        "indexer_compress_ratio": 4,
    },
    # encoders that can be decoders
    **{t: {"is_decoder": True} for t in ("bert", "bert-generation", "electra", "roberta")},
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds": False,
        "attention_head_size": 8,
        "feed_forward_size": INNER,
        "attn_layers": ["local", "lsh"] * 2,
        "local_attn_chunk_length": WINDOW,
        "lsh_attn_chunk_length": WINDOW,
        "num_buckets": 4,
        "hash_seed": 0,  # else every forward pass draws its own hashes
    },
    "xmod": {"default_language": "en_XX"},
    # towers longer than the stack that reads text
    **{t: {"num_hidden_layers": 6} for t in ("git_vision_model", "siglip_vision_model")},
    "phi4_multimodal_vision": {"num_hidden_layers": 6},
    "got_ocr2_vision": {"num_hidden_layers": 6},
    # sizes with names or limits of their own
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "blt_global_transformer": {"num_hidden_layers": 6},  # the longest of its four stacks
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": KV_HEADS, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {
            "hidden_size": HIDDEN,
            "ffn_hidden_size": EXPERT,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
    },
    "dots3_note_text": {
        "per_layer_config": {},
        "head_dim": 12,
        "shared_experts_intermediate_size": EXPERT,
    },
    "dots3_note_vision_encoder": {"per_layer_config": {}},
    "falcon_h1": {"mamba_d_ssm": 64},
    "inkling2_text": {"n_layers_per_attn_res_block": 2},
    "llama4_text": {
        "intermediate_size_mlp": INNER,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": WINDOW,
        "num_experts_per_tok": 1,
    },
    "longcat_flash": {"num_layers": 2, "zero_expert_num": 2, "head_dim": 4},  # a layer has 2 of all
    "mamba2": {"num_heads": 8, "n_groups": 1},
    "minicpm3": {"dim_model_base": HIDDEN},  # else logits in the hundreds, coarse in float32
    "roc_bert": {"pronunciation_vocab_size": 32, "shape_vocab_size": 32},
    "rwkv": {"rescale_every": 2},
    "zaya": {"num_experts_per_tok": 1},  # it supports no other
}


def causal_types() -> list[str]:
    """Every model type that transformers registers for AutoModelForCausalLM, by name."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(model_type: str) -> PreTrainedConfig:
    """The configuration of a model type with everything that has a size made small."""
    return _shrink(CONFIG_MAPPING[model_type])


def build(model_type: str) -> PreTrainedModel:
    """A tiny random model in float32, the same at every call, in which every weight matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(tiny_config(model_type)).float().eval()
    _draw_weights(model)
    return model


def _shrink(config_class: type[PreTrainedConfig]) -> PreTrainedConfig:
    default = config_class()
    aliases = config_class.attribute_map
    known = default.to_dict().keys() | aliases.keys()
    values: dict[str, Any] = {}
    for name, value in SIZES.items():
        if name in known:
            values.setdefault(aliases.get(name, name), value)
    if "kv_lora_rank" in known:  # latent attention derives head_dim and has no fewer KV heads
        values.pop("head_dim", None)
        if "num_key_value_heads" in values:
            values["num_key_value_heads"] = HEADS
    for name in config_class.sub_configs:
        if isinstance(part := getattr(default, name, None), PreTrainedConfig):
            values[name] = _shrink(type(part))
    return config_class(**values | OVERRIDES.get(config_class.model_type, {}))


@torch.no_grad()
def _draw_weights(model: PreTrainedModel) -> None:
    """Matrices N(0, 1 / fan-in), embeddings N(0, 1/4), vectors what they were plus some noise."""
    generator = torch.Generator().manual_seed(0)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=generator)
        if p.dim() == 1:
            p.add_(noise * 0.1)
        elif p.dim() >= 2:
            p.copy_(noise * (0.5 if id(p) in embeddings else p.shape[-1] ** -0.5))
