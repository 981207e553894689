#include "colossal/models/llama_layout.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/models/folder_config.h"
#include "colossal/ops/activation.h"

namespace colossal::models {
namespace {

at::Tensor gated_silu(const at::Tensor& gate_and_up) { return ops::swiglu(gate_and_up); }

}  // namespace

ModelShape llama_layout(const LlamaLayoutSizes& s, const OwnSizes& own) {
  return {.vocabulary = s.vocabulary,
          .hidden = s.hidden,
          .layers = s.layers,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim == 0 ? s.hidden / s.heads : s.head_dim,
          .ffn = s.ffn,
          .positions = s.positions,
          .norm_epsilon = s.norm_epsilon,
          .tied = s.tied,
          .own = own};
}

BlockVariant llama_block(const ModelShape& s, const RotaryKeys& rotary) {
  return {.norm = {NormVariant::Kind::Rms},
          .activation = gated_silu,
          .gated = true,
          .bias = {.qkv = false, .out = false, .mlp = false},
          .rotary = rotary.table(s.head_dim)};
}

void check_rotary_heads(const ModelShape& s) {
  require(s.head_dim % 2 == 0, "model", "rotary positions need an even head_dim: got ", s.head_dim);
}

FolderNames llama_layout_names() {
  return {.outside = {{"embedding", {"model.embed_tokens"}}, {"norm", {"model.norm"}}, {"head", {"lm_head"}}},
          .blocks = "model.layers.",
          .in_block = {{"norm_1", {"input_layernorm"}},
                       {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                       {"attention.q_norm", {"self_attn.q_norm"}},
                       {"attention.k_norm", {"self_attn.k_norm"}},
                       {"attention.out", {"self_attn.o_proj"}},
                       {"norm_2", {"post_attention_layernorm"}},
                       {"mlp.gate_up", {"mlp.gate_proj", "mlp.up_proj"}},
                       {"mlp.down", {"mlp.down_proj"}}}};
}

ModelShape read_llama_layout(const FolderConfig& c, bool tied) {
  const auto heads = c.at<int64_t>("num_attention_heads"), hidden = c.at<int64_t>("hidden_size");
  c.must_be("attention_dropout", 0);
  c.must_be("hidden_act", "silu");
  return {.vocabulary = c.at<int64_t>("vocab_size"),
          .hidden = hidden,
          .layers = c.at<int64_t>("num_hidden_layers"),
          .heads = heads,
          .kv_heads = c.value("num_key_value_heads", heads),
          .head_dim = c.value("head_dim", hidden / std::max<int64_t>(1, heads)),
          .ffn = c.at<int64_t>("intermediate_size"),
          .positions = c.at<int64_t>("max_position_embeddings"),
          .norm_epsilon = c.value("rms_norm_eps", 1e-6),
          .tied = c.value("tie_word_embeddings", tied)};
}

nlohmann::json write_llama_layout(const ModelShape& s, const char* model_type, const char* architecture) {
  return {{"architectures", {architecture}},   {"model_type", model_type},
          {"vocab_size", s.vocabulary},        {"hidden_size", s.hidden},
          {"num_hidden_layers", s.layers},     {"num_attention_heads", s.heads},
          {"num_key_value_heads", s.kv_heads}, {"head_dim", s.head_dim},
          {"intermediate_size", s.ffn},        {"max_position_embeddings", s.positions},
          {"rms_norm_eps", s.norm_epsilon},    {"tie_word_embeddings", s.tied},
          {"attention_dropout", 0.0}};
}

}  // namespace colossal::models
