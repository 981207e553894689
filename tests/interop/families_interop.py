"""Compares language models of every dense family of transformers, with random weights and odd shapes
(family_checks.py).

A new family is a row of ROWS."""

import interop
from family_checks import ROPE, Row, check, plain_sizes, rope, sizes

torch, transformers = interop.need("torch", "transformers")

TOKENS = dict(bos_token_id=256, eos_token_id=256, pad_token_id=None, vocab_size=263)
GPT = dict(TOKENS, n_positions=64, n_layer=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
GPT_SIZES = {"n_embd": lambda c: {"n_embd": 2 * c["n_embd"]}, "n_head": lambda c: {"n_head": 2 * c["n_head"]},
             "n_layer": lambda c: {"n_layer": c["n_layer"] + 1}, "n_inner": lambda c: {"n_inner": 99}}
FALCON = dict(TOKENS, hidden_size=48, num_hidden_layers=2, max_position_embeddings=64)
OPT = dict(TOKENS, num_hidden_layers=2, ffn_dim=77, max_position_embeddings=64, dropout=0.0)
BLOOM = dict(TOKENS, n_layer=2)
SLIDING = ["full_attention", "sliding_attention", "full_attention"]
UNSCALED = rope("default")

ROWS = [
    Row("llama", transformers.LlamaForCausalLM, transformers.LlamaConfig,
        [sizes(attention_bias=True, mlp_bias=True, **rope("yarn", factor=4.0, original_max_position_embeddings=16)),
         sizes(max_position_embeddings=16, hidden_act="gelu", **rope("dynamic", factor=4.0)),
         sizes(**rope("linear", factor=3.0)),
         sizes(num_attention_heads=5, num_key_value_heads=1, hidden_size=40, head_dim=6, tie_word_embeddings=True,
               **rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                      original_max_position_embeddings=32))],
        matters=[UNSCALED, UNSCALED, UNSCALED, UNSCALED]),
    Row("mistral", transformers.MistralForCausalLM, transformers.MistralConfig,
        [sizes(sliding_window=7),
         sizes(num_attention_heads=3, num_key_value_heads=1, sliding_window=None, head_dim=10)],
        matters=[{"sliding_window": None}, {}]),
    Row("qwen2", transformers.Qwen2ForCausalLM, transformers.Qwen2Config,
        [sizes(**rope("default")),
         sizes(num_attention_heads=7, num_key_value_heads=7, hidden_size=56, num_hidden_layers=3,
               tie_word_embeddings=True, use_sliding_window=True, sliding_window=5, layer_types=SLIDING)],
        matters=[{}, {"sliding_window": 6}]),
    Row("qwen3", transformers.Qwen3ForCausalLM, transformers.Qwen3Config,
        [sizes(head_dim=12, tie_word_embeddings=True),
         sizes(num_attention_heads=5, num_key_value_heads=1, hidden_size=40, head_dim=6, attention_bias=True,
               num_hidden_layers=3, use_sliding_window=True, sliding_window=5, max_window_layers=2)],
        matters=[{}, {"sliding_window": 6}]),
    Row("gemma2", transformers.Gemma2ForCausalLM, transformers.Gemma2Config,
        [sizes(head_dim=12, query_pre_attn_scalar=9, sliding_window=5, attn_logit_softcapping=2.0,
               final_logit_softcapping=3.0),
         sizes(num_attention_heads=5, num_key_value_heads=1, hidden_size=40, head_dim=6, attention_bias=True,
               num_hidden_layers=3, sliding_window=5, layer_types=SLIDING, tie_word_embeddings=False,
               attn_logit_softcapping=None)],
        matters=[{"sliding_window": 6, "query_pre_attn_scalar": 12, "attn_logit_softcapping": None,
                  "final_logit_softcapping": None},
                 {"sliding_window": 6, "query_pre_attn_scalar": 12}],
        others={"use_bidirectional_attention": lambda c: {"use_bidirectional_attention": True},
                "attn_logit_softcapping": lambda c: {"attn_logit_softcapping": 7.0}}),
    Row("phi3", transformers.Phi3ForCausalLM, transformers.Phi3Config,
        [sizes(sliding_window=5, **rope("default", partial_rotary_factor=0.5)),
         sizes(num_attention_heads=5, num_key_value_heads=1, hidden_size=40, original_max_position_embeddings=12,
               **rope("longrope", partial_rotary_factor=0.75, short_factor=[1.5, 2.0, 3.0],
                      long_factor=[1.0, 5.0, 7.0]))],
        matters=[{"sliding_window": 6} | rope("default"), rope("default", partial_rotary_factor=0.75)],
        others={"hidden_size": lambda c: {"hidden_size": 80, "num_attention_heads": 10},
                "num_attention_heads": lambda c: {"num_attention_heads": 10, "hidden_size": 80}},
        harmless={"resid_pdrop": "only training reads it"}),
    Row("gpt2", transformers.GPT2LMHeadModel, transformers.GPT2Config,
        [dict(GPT, n_head=6, n_embd=48, n_inner=77, activation_function="relu", scale_attn_by_inverse_layer_idx=True),
         dict(GPT, n_head=5, n_embd=40, scale_attn_weights=False, activation_function="quick_gelu",
              tie_word_embeddings=False)],
        matters=[{"scale_attn_by_inverse_layer_idx": False, "activation_function": "gelu_new"},
                 {"scale_attn_weights": True}],
        others={"resid_pdrop": lambda c: {"resid_pdrop": 0.25, "embd_pdrop": 0.25}} | GPT_SIZES,
        harmless={"attn_pdrop": "dropout of scores while training, which ours do not have",
                  "n_ctx": "n_positions says it", "reorder_and_upcast_attn": "the same scores, in fp32 as ours always",
                  **{key: "of another head" for key in ("summary_type", "summary_use_proj", "summary_activation",
                                                        "summary_proj_to_labels", "summary_first_dropout")}}),
    Row("gpt_neox", transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig,
        [plain_sizes(rope_parameters=ROPE | {"rope_type": "default", "partial_rotary_factor": 0.5},
                     hidden_act="gelu_fast"),
         plain_sizes(num_attention_heads=5, hidden_size=40,
                     rope_parameters=ROPE | {"rope_type": "default", "partial_rotary_factor": 1.0},
                     use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True)],
        matters=[{"use_parallel_residual": False}, {"use_parallel_residual": True}],
        harmless={"is_decoder": "nothing reads it", "classifier_dropout": "of another head"},
        renamed={"embed_out.weight": "lm_head.weight"}),
    Row("gptj", transformers.GPTJForCausalLM, transformers.GPTJConfig,
        [dict(GPT, n_head=6, n_embd=48, n_inner=77, rotary_dim=4),
         dict(GPT, n_head=5, n_embd=40, rotary_dim=8, activation_function="relu", tie_word_embeddings=True)],
        matters=[{"rotary_dim": 8}, {"rotary_dim": 4}],
        others=GPT_SIZES | {"resid_pdrop": lambda c: {"resid_pdrop": 0.25, "embd_pdrop": 0.25},
                            "rotary_dim": lambda c: {"rotary_dim": 6},
                            "n_head": lambda c: {"n_head": 2 * c["n_head"], "rotary_dim": 4}}),
    Row("falcon", transformers.FalconForCausalLM, transformers.FalconConfig,
        [dict(FALCON, num_attention_heads=6, rope_parameters=ROPE | {"rope_type": "default"}),
         dict(FALCON, num_attention_heads=8, alibi=True, parallel_attn=False, multi_query=False, bias=True),
         dict(FALCON, num_attention_heads=6, num_kv_heads=3, new_decoder_architecture=True, num_ln_in_parallel_attn=1,
              ffn_hidden_size=100, activation="relu", tie_word_embeddings=False),
         dict(FALCON, num_attention_heads=6, num_kv_heads=2, new_decoder_architecture=True)],
        matters=[{"rope_parameters": {"rope_type": "default", "rope_theta": 3.0}}, {"alibi": False},
                 {"activation": "gelu"}, {}],
        others={"new_decoder_architecture": lambda c: {"new_decoder_architecture": False,
                                                       "num_ln_in_parallel_attn": None},
                "num_ln_in_parallel_attn": lambda c: {"num_ln_in_parallel_attn": 1},
                "num_kv_heads": lambda c: {"num_kv_heads": 3}, "ffn_hidden_size": lambda c: {"ffn_hidden_size": 99}},
        harmless={"multi_query": "that architecture says how many keys there are"}),
    Row("opt", transformers.OPTForCausalLM, transformers.OPTConfig,
        [dict(OPT, num_attention_heads=6, hidden_size=48, word_embed_proj_dim=20, do_layer_norm_before=False),
         dict(OPT, num_attention_heads=5, hidden_size=40, enable_bias=False, activation_function="gelu",
              tie_word_embeddings=False)],
        matters=[{}, {"activation_function": "relu"}],
        others={"_remove_final_layer_norm": lambda c: {"_remove_final_layer_norm": True},
                "word_embed_proj_dim": lambda c: {"word_embed_proj_dim": 20}},
        harmless={"init_std": "how weights begin"}),
    Row("bloom", transformers.BloomForCausalLM, transformers.BloomConfig,
        [dict(BLOOM, n_head=6, hidden_size=48), dict(BLOOM, n_head=5, hidden_size=40, tie_word_embeddings=False)],
        others={"n_head": lambda c: {"n_head": 2 * c["n_head"]}, "n_layer": lambda c: {"n_layer": c["n_layer"] + 1}},
        harmless={"slow_but_exact": "the same sums in another order"}),
]

check(ROWS)
