#include "colossal/checkpoint/gguf/family.h"

#include <set>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::checkpoint {
namespace {

using Change = GgufChange;
using Kind = GgufKey::Kind;

/// Returns the rows (GGUF name, folder name) of the layer tensors that LLaMA and its successors share. The rows of
/// `particular` come first, so look-ups find them first, and replace common rows with the same GGUF name.
std::vector<GgufName> llama_block_names(std::vector<GgufName> particular = {}) {
  const GgufName common[] = {{"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
                             {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
                             {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
                             {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
                             {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
                             {"ffn_down", "mlp.down_proj"}};
  for (const GgufName& name : common) {
    bool is_there = false;
    for (const GgufName& other : particular) is_there |= std::string(other.gguf) == name.gguf;
    if (!is_there) particular.push_back(name);
  }
  return particular;
}

std::vector<GgufName> llama_outside(Change norm = Change::None) {
  return {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm", norm}, {"output", "lm_head"}};
}

std::vector<GgufKey> llama_keys(std::vector<GgufKey> more = {}) {
  more.insert(more.begin(), {{"context_length", "max_position_embeddings"},
                             {"embedding_length", "hidden_size"},
                             {"block_count", "num_hidden_layers"},
                             {"feed_forward_length", "intermediate_size"},
                             {"attention.head_count", "num_attention_heads"},
                             {"attention.head_count_kv", "num_key_value_heads", Kind::Integer, true},
                             {"attention.layer_norm_rms_epsilon", "rms_norm_eps", Kind::Real},
                             {"rope.freq_base", "rope_theta", Kind::Real, true}});
  return more;
}

const GgufKey kHeadDim{"attention.key_length", "head_dim", Kind::Integer, true};

/// Returns the rows of the layer tensors of GPT-2 and its successors: norms with biases, and q, k and v in one matrix.
std::vector<GgufName> gpt_block_names(const char* norm_1, const char* norm_2, const char* qkv, const char* out,
                                      const char* up, const char* down, Change matrix, Change heads) {
  return {{"attn_norm", norm_1},        {"ffn_norm", norm_2},   {"attn_qkv", qkv, heads},
          {"attn_output", out, matrix}, {"ffn_up", up, matrix}, {"ffn_down", down, matrix}};
}

GgufFamily llama_family() {
  return {"llama",
          "llama",
          "model.layers.",
          llama_outside(),
          llama_block_names(
              {{"attn_q", "self_attn.q_proj", Change::QueryPairs}, {"attn_k", "self_attn.k_proj", Change::KeyPairs}}),
          llama_keys({kHeadDim}),
          {{"hidden_act", "silu"}},
          {"rope.dimension_count"}};
}

/// Returns the rows of a layer whose feed-forward layer is a mixture of experts, with the names of the mixture and of
/// the matrices of an expert. The rows of `particular` come first.
std::vector<GgufName> mixture_block_names(const char* router, const char* gate, const char* up, const char* down,
                                          std::vector<GgufName> particular = {}) {
  particular.insert(particular.end(),
                    {{"ffn_gate_inp", router}, {"ffn_gate_exps", gate}, {"ffn_up_exps", up}, {"ffn_down_exps", down}});
  std::vector<GgufName> names = llama_block_names(std::move(particular));
  const std::set<std::string> dense{"ffn_gate", "ffn_up", "ffn_down"};
  std::erase_if(names, [&](const GgufName& name) { return dense.contains(name.gguf); });
  return names;
}

/// llama.cpp has one architecture for LLaMA and Mixtral, which has no window there. It divides the weights of the used
/// experts by their sum, as Mixtral does.
GgufFamily mixtral_family() {
  GgufFamily family = llama_family();
  family.model_type = "mixtral";
  family.in_block = mixture_block_names(
      "block_sparse_moe.gate", "block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3",
      "block_sparse_moe.experts.{}.w2",
      {{"attn_q", "self_attn.q_proj", Change::QueryPairs}, {"attn_k", "self_attn.k_proj", Change::KeyPairs}});
  family.keys.push_back({"expert_count", "num_local_experts"});
  family.keys.push_back({"expert_used_count", "num_experts_per_tok"});
  family.fixed["sliding_window"] = nullptr;
  family.has_experts = true;
  return family;
}

/// Qwen 2 and 3 share one table.
GgufFamily qwen_family(const char* name) {
  return {name,
          name,
          "model.layers.",
          llama_outside(),
          llama_block_names(),
          llama_keys({kHeadDim}),
          {{"hidden_act", "silu"}, {"use_sliding_window", false}},
          {"rope.dimension_count"}};
}

/// llama.cpp computes a mixture in every layer, and divides the weights of the used experts by their sum.
GgufFamily qwen_moe_family() {
  GgufFamily family = qwen_family("qwen3moe");
  family.model_type = "qwen3_moe";
  family.in_block =
      mixture_block_names("mlp.gate", "mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj");
  family.keys.push_back({"expert_count", "num_experts"});
  family.keys.push_back({"expert_used_count", "num_experts_per_tok"});
  family.keys.push_back({"expert_feed_forward_length", "moe_intermediate_size"});
  family.fixed["norm_topk_prob"] = true;
  family.fixed["decoder_sparse_step"] = 1;
  family.fixed["mlp_only_layers"] = nlohmann::json::array();
  family.has_experts = true;
  return family;
}

/// DeepSeek-V2 and V3 have one architecture. llama.cpp rotates neighbouring features, as their folders do unless
/// rope_interleave is false.
GgufFamily deepseek_family() {
  std::vector<GgufName> names{
      {"attn_norm", "input_layernorm"},
      {"attn_q", "self_attn.q_proj"},
      {"attn_q_a", "self_attn.q_a_proj"},
      {"attn_q_a_norm", "self_attn.q_a_layernorm"},
      {"attn_q_b", "self_attn.q_b_proj"},
      {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
      {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
      {"attn_k_b", "self_attn.kv_b_proj", Change::LatentKeys},
      {"attn_v_b", "self_attn.kv_b_proj", Change::LatentValues},
      {.gguf = "attn_kv_b", .folder = "self_attn.kv_b_proj", .is_old = true},
      {"attn_output", "self_attn.o_proj"},
      {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},
      {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"},
      {.gguf = "exp_probs_b.bias", .folder = "mlp.gate.e_score_correction_bias", .is_whole = true},
      {"ffn_gate_inp", "mlp.gate"},
      {"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
      {"ffn_up_exps", "mlp.experts.{}.up_proj"},
      {"ffn_down_exps", "mlp.experts.{}.down_proj"},
      {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
      {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
      {"ffn_down_shexp", "mlp.shared_experts.down_proj"}};
  std::vector<GgufKey> keys = llama_keys({{"leading_dense_block_count", "first_k_dense_replace"},
                                          {"attention.q_lora_rank", "q_lora_rank", Kind::Integer, true},
                                          {"attention.kv_lora_rank", "kv_lora_rank"},
                                          {"expert_count", "n_routed_experts"},
                                          {"expert_used_count", "num_experts_per_tok"},
                                          {"expert_shared_count", "n_shared_experts"},
                                          {"expert_feed_forward_length", "moe_intermediate_size"},
                                          {"expert_weights_scale", "routed_scaling_factor", Kind::Real, true},
                                          {"expert_weights_norm", "norm_topk_prob", Kind::Flag, true}});
  std::erase_if(keys, [](const GgufKey& key) { return std::string_view(key.gguf) == "attention.head_count_kv"; });
  return {
      .architecture = "deepseek2",
      .model_type = "deepseek_v3",
      .blocks = "model.layers.",
      .outside = llama_outside(),
      .in_block = std::move(names),
      .keys = std::move(keys),
      .fixed = {{"hidden_act", "silu"}, {"attention_bias", false}, {"moe_layer_freq", 1}, {"rope_interleave", true}},
      .implied = {"attention.head_count_kv", "attention.key_length", "attention.key_length_mla",
                  "attention.value_length_mla", "expert_gating_func", "expert_group_count", "expert_group_used_count",
                  "rope.scaling.yarn_log_multiplier"},
      .has_experts = true,
      .also = "deepseek_v2",
      .has_multi_token = true};
}

GgufFamily gemma2_family() {
  return {"gemma2",
          "gemma2",
          "model.layers.",
          llama_outside(Change::OneMore),
          llama_block_names({{"attn_norm", "input_layernorm", Change::OneMore},
                             {"post_attention_norm", "post_attention_layernorm", Change::OneMore},
                             {"ffn_norm", "pre_feedforward_layernorm", Change::OneMore},
                             {"post_ffw_norm", "post_feedforward_layernorm", Change::OneMore}}),
          llama_keys({{"attention.key_length", "head_dim"},
                      {"attention.sliding_window", "sliding_window", Kind::Integer, true},
                      {"attn_logit_softcapping", "attn_logit_softcapping", Kind::Real, true},
                      {"final_logit_softcapping", "final_logit_softcapping", Kind::Real, true}}),
          {{"hidden_activation", "gelu_pytorch_tanh"}, {"attention_bias", false}},
          {"rope.dimension_count"}};
}

GgufFamily phi3_family() {
  return {"phi3",
          "phi3",
          "model.layers.",
          llama_outside(),
          llama_block_names({{"attn_qkv", "self_attn.qkv_proj"}, {"ffn_up", "mlp.gate_up_proj"}}),
          llama_keys(),
          {{"hidden_act", "silu"}},
          {"attention.key_length"}};
}

GgufFamily gpt2_family() {
  return {
      "gpt2",
      "gpt2",
      "transformer.h.",
      {{"token_embd", "transformer.wte"},
       {"position_embd", "transformer.wpe"},
       {"output_norm", "transformer.ln_f"},
       {"output", "lm_head"}},
      gpt_block_names("ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", Change::Transposed,
                      Change::Transposed),
      {{"context_length", "n_positions"},
       {"embedding_length", "n_embd"},
       {"block_count", "n_layer"},
       {"feed_forward_length", "n_inner"},
       {"attention.head_count", "n_head"},
       {"attention.layer_norm_epsilon", "layer_norm_epsilon", Kind::Real}},
      {{"activation_function", "gelu_new"}, {"scale_attn_weights", true}, {"scale_attn_by_inverse_layer_idx", false}},
      {"attention.head_count_kv"}};
}

GgufFamily gpt_neox_family() {
  return {"gptneox",
          "gpt_neox",
          "gpt_neox.layers.",
          {{"token_embd", "gpt_neox.embed_in"}, {"output_norm", "gpt_neox.final_layer_norm"}, {"output", "embed_out"}},
          gpt_block_names("input_layernorm", "post_attention_layernorm", "attention.query_key_value", "attention.dense",
                          "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", Change::None, Change::Groups),
          {{"context_length", "max_position_embeddings"},
           {"embedding_length", "hidden_size"},
           {"block_count", "num_hidden_layers"},
           {"feed_forward_length", "intermediate_size"},
           {"attention.head_count", "num_attention_heads"},
           {"attention.layer_norm_epsilon", "layer_norm_eps", Kind::Real},
           {"rope.freq_base", "rope_theta", Kind::Real, true},
           {"use_parallel_residual", "use_parallel_residual", Kind::Flag, true}},
          {{"hidden_act", "gelu"}, {"attention_bias", true}},
          {"attention.head_count_kv"}};
}

GgufFamily bloom_family() {
  return {
      "bloom",
      "bloom",
      "transformer.h.",
      {{"token_embd", "transformer.word_embeddings"},
       {"token_embd_norm", "transformer.word_embeddings_layernorm"},
       {"output_norm", "transformer.ln_f"},
       {"output", "lm_head"}},
      gpt_block_names("input_layernorm", "post_attention_layernorm", "self_attention.query_key_value",
                      "self_attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", Change::None, Change::Groups),
      {{"context_length", "seq_length", Kind::Integer, true},
       {"embedding_length", "hidden_size"},
       {"block_count", "n_layer"},
       {"attention.head_count", "n_head"},
       {"attention.layer_norm_epsilon", "layer_norm_epsilon", Kind::Real}},
      {{"apply_residual_connection_post_layernorm", false}},
      {"attention.head_count_kv", "feed_forward_length"}};
}

GgufFamily falcon_family() {
  std::vector<GgufName> names = gpt_block_names("ln_mlp", "", "self_attention.query_key_value", "self_attention.dense",
                                                "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", Change::None, Change::Groups);
  names[1] = {"attn_norm_2", "ln_attn"};
  names.insert(names.begin(), {"attn_norm", "input_layernorm", Change::None, "attn_norm_2"});
  return {"falcon",
          "falcon",
          "transformer.h.",
          {{"token_embd", "transformer.word_embeddings"}, {"output_norm", "transformer.ln_f"}, {"output", "lm_head"}},
          names,
          {{"context_length", "max_position_embeddings"},
           {"embedding_length", "hidden_size"},
           {"block_count", "num_hidden_layers"},
           {"feed_forward_length", "ffn_hidden_size"},
           {"attention.head_count", "num_attention_heads"},
           {"attention.head_count_kv", "num_kv_heads", Kind::Integer, true},
           {"attention.layer_norm_epsilon", "layer_norm_epsilon", Kind::Real},
           {"rope.freq_base", "rope_theta", Kind::Real, true}},
          {{"activation", "gelu"}, {"parallel_attn", true}, {"bias", false}, {"alibi", false}},
          {"tensor_data_layout"}};
}

std::vector<GgufFamily> make_families() {
  return {llama_family(),    mixtral_family(),  qwen_family("qwen2"), qwen_family("qwen3"),
          qwen_moe_family(), deepseek_family(), gemma2_family(),      phi3_family(),
          gpt2_family(),     gpt_neox_family(), bloom_family(),       falcon_family()};
}

const std::vector<GgufFamily>& families() {
  static const std::vector<GgufFamily> all = make_families();
  return all;
}

}  // namespace

const GgufFamily& family_of_architecture(const std::string& architecture, const std::string& path, bool has_experts) {
  std::string known;
  const GgufFamily* other = nullptr;
  for (const GgufFamily& family : families()) {
    if (architecture == family.architecture) {
      if (family.has_experts == has_experts) return family;
      other = &family;
    }
    if (!known.ends_with(family.architecture)) known += (known.empty() ? "" : ", ") + std::string(family.architecture);
  }
  require(other, "gguf", path, ": the architecture must be one of ", known, ": got ", printable(architecture));
  throw Error("gguf", concat(path, ": ", architecture, ".expert_count must be ",
                             has_experts ? "0, because models of this architecture have no experts: got more"
                                         : "above 0, because layers of this architecture are mixtures of experts"));
}

const GgufFamily& family_of(const formats::GgufFile& file) {
  const std::string& architecture = file.text("general.architecture");
  return family_of_architecture(architecture, file.path(), file.integer(architecture + ".expert_count", 0) > 0);
}

const GgufFamily* family_of_model_type(const std::string& model_type) {
  for (const GgufFamily& family : families())
    if (model_type == family.model_type || (family.also && model_type == family.also)) return &family;
  return nullptr;
}

}  // namespace colossal::checkpoint
