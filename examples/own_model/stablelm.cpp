#include "stablelm.h"

#include <ATen/ATen.h>

#include "colossal/base/json.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/dropout.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"

namespace models = colossal::models;
namespace nn = colossal::nn;
namespace ops = colossal::ops;
namespace tensor = colossal::tensor;
using colossal::concat;
using colossal::require;

void StableLmSizes::fields(colossal::Fields& f) {
  f.flag("parallel", parallel, "parallel branches: attention and feed-forward layer both read the block's input");
  f.number("rotary", rotary, "of each head", "share of the features that rotary positions rotate", 0, 1);
  f.number("rope_theta", rope_theta, "", "base of the rotary frequencies", 1, 1e12);
}

namespace {

constexpr double kDeviation = 0.02;  // standard deviation of initial weights

int64_t turned_features(const models::ModelShape& s) {
  return static_cast<int64_t>(static_cast<double>(s.head_dim) * s.own.as<StableLmSizes>().rotary);
}

/// A block, written as if for one process. The factory decides which part of its matrix each layer keeps on this rank,
/// and which data it exchanges.
class Block {
 public:
  Block(const models::ModelShape& s, int64_t index, nn::Layers& make)
      : is_parallel_(s.own.as<StableLmSizes>().parallel),
        rotary_(turned_features(s), s.own.as<StableLmSizes>().rope_theta) {
    const std::string name = concat("blocks.", index);
    const nn::LinearOptions plain{.bias = false, .deviation = kDeviation};
    nn::LinearOptions gated = plain;
    gated.segments = {{s.ffn}, {s.ffn}};  // gate and up are one matrix, so a rank gets columns of both
    norm_1_ = make.layer_norm(name + ".norm_1", s.hidden, {s.norm_epsilon});
    qkv_ = make.heads(name + ".attention.qkv", s.attention(), plain);
    attention_ = make.attention(name + ".attention", s.attention(), {});
    out_ = make.from_heads(name + ".attention.out", s.attention(), plain);
    if (!is_parallel_) norm_2_ = make.layer_norm(name + ".norm_2", s.hidden, {s.norm_epsilon});
    gate_up_ = make.expand(name + ".mlp.gate_up", s.hidden, 2 * s.ffn, gated);
    down_ = make.contract(name + ".mlp.down", s.ffn, s.hidden, plain);
    drop_1_ = make.dropout(name + ".attention.dropout", s.hidden, s.dropout);
    drop_2_ = make.dropout(name + ".mlp.dropout", s.hidden, s.dropout);
  }

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    const at::Tensor normed = norm_1_->forward(x);
    const at::Tensor h = x + drop_1_->forward(attended(normed, step), step);
    const at::Tensor fed = is_parallel_ ? normed : norm_2_->forward(h);
    const auto swiglu = [](const at::Tensor& gate_and_up) { return ops::swiglu(gate_and_up); };
    return h + drop_2_->forward(down_->forward(gate_up_->forward(fed).map(swiglu, step)), step);
  }

 private:
  at::Tensor attended(const at::Tensor& x, const nn::ForwardContext& step) const {
    nn::Heads heads = qkv_->forward(x, step);
    nn::turn(heads, step, rotary_);
    return out_->forward(attention_->forward(heads, step), step);
  }

  bool is_parallel_;
  ops::RotaryTable rotary_;
  std::unique_ptr<nn::Norm> norm_1_, norm_2_;
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::Attention> attention_;
  std::unique_ptr<nn::Expand> gate_up_;
  std::unique_ptr<nn::OutputProjection> out_;
  std::unique_ptr<nn::Contract> down_;
  std::unique_ptr<nn::Dropout> drop_1_, drop_2_;
};

models::Model make(const models::ModelShape& s, nn::Layers& layers) {
  models::Model model;
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, kDeviation);
  model.fields = {"ids", "positions"};
  model.embed = [tokens](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return tokens->forward(batch.at("ids"), step);
  };
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto block = std::make_shared<const Block>(s, i, layers);
    model.blocks.push_back(
        [block](const at::Tensor& x, const nn::ForwardContext& step) { return block->forward(x, step); });
  }
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
  model.norm = [norm](const at::Tensor& x, const nn::ForwardContext&) { return norm->forward(x); };
  model.head = layers.lm_head("head", s.hidden, s.vocabulary,
                              {.deviation = kDeviation, .tied = s.tied ? tokens.get() : nullptr});
  return model;
}

void settle(models::ModelShape& s) {
  const int64_t turns = turned_features(s);
  require(turns > 0 && turns % 2 == 0, "model", "rotary must rotate an even number of features of each head: got ",
          turns, " of ", s.head_dim);
}

// Returns the names of each parameter in a folder of transformers. A parameter with several names consists of the rows
// of these tensors, in order.
std::vector<nn::ExternalName> external_names(const models::ModelShape& s) {
  std::vector<nn::ExternalName> names{{"embedding.weight", {"model.embed_tokens.weight"}},
                                      {"norm.weight", {"model.norm.weight"}},
                                      {"norm.bias", {"model.norm.bias"}}};
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string ours = concat("blocks.", i), theirs = concat("model.layers.", i);
    const std::string attention = theirs + ".self_attn.", mlp = theirs + ".mlp.";
    for (const char* kind : {".weight", ".bias"}) {
      names.push_back({ours + ".norm_1" + kind, {theirs + ".input_layernorm" + kind}});
      if (!s.own.as<StableLmSizes>().parallel)
        names.push_back({ours + ".norm_2" + kind, {theirs + ".post_attention_layernorm" + kind}});
    }
    names.push_back({ours + ".attention.qkv.weight",
                     {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"}});
    names.push_back({ours + ".attention.out.weight", {attention + "o_proj.weight"}});
    names.push_back({ours + ".mlp.gate_up.weight", {mlp + "gate_proj.weight", mlp + "up_proj.weight"}});
    names.push_back({ours + ".mlp.down.weight", {mlp + "down_proj.weight"}});
  }
  if (!s.tied) names.push_back({"head.weight", {"lm_head.weight"}});
  return names;
}

models::ModelShape from_json(const nlohmann::json& j) {
  for (const char* option : {"use_qkv_bias", "qk_layernorm"})
    require(!j.value(option, false), "model", option, " of a StableLM must be false: got true");
  require(j.value("hidden_act", "silu") == "silu", "model", "hidden_act of a StableLM must be silu: got ",
          j.value("hidden_act", ""));
  const auto object = [&](const char* key) {
    return j.contains(key) && j[key].is_object() ? j[key] : nlohmann::json();
  };
  for (const nlohmann::json& scaling : {object("rope_scaling"), object("rope_parameters")}) {
    if (!scaling.is_object()) continue;
    const std::string type = scaling.value("rope_type", scaling.value("type", "default"));
    require(type == "default", "model", "rope_scaling of a StableLM must be of type default: got ", type);
  }
  // transformers 5 stores both numbers in rope_parameters.
  const nlohmann::json turns = object("rope_parameters").is_object() ? j["rope_parameters"] : j;
  const double rotary = turns.value("partial_rotary_factor", 0.25);
  require(rotary > 0 && rotary <= 1, "model", "partial_rotary_factor of a StableLM must be in (0, 1]: got ", rotary);
  const int64_t heads = j.at("num_attention_heads");
  return {.vocabulary = j.at("vocab_size"),
          .hidden = j.at("hidden_size"),
          .layers = j.at("num_hidden_layers"),
          .heads = heads,
          .kv_heads = j.value("num_key_value_heads", heads),
          .head_dim = j.at("hidden_size").get<int64_t>() / std::max<int64_t>(1, heads),
          .ffn = j.at("intermediate_size"),
          .positions = j.at("max_position_embeddings"),
          .norm_epsilon = j.value("layer_norm_eps", 1e-5),
          .tied = j.value("tie_word_embeddings", false),
          .own = StableLmSizes{.parallel = j.value("use_parallel_residual", false),
                               .rotary = rotary,
                               .rope_theta = turns.value("rope_theta", 10000.0)}};
}

nlohmann::json to_json(const models::ModelShape& s) {
  const auto own = s.own.as<StableLmSizes>();
  return {{"architectures", {"StableLmForCausalLM"}},
          {"model_type", "stablelm"},
          {"vocab_size", s.vocabulary},
          {"hidden_size", s.hidden},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.heads},
          {"num_key_value_heads", s.kv_heads},
          {"intermediate_size", s.ffn},
          {"max_position_embeddings", s.positions},
          {"layer_norm_eps", s.norm_epsilon},
          {"tie_word_embeddings", s.tied},
          {"use_parallel_residual", own.parallel},
          {"partial_rotary_factor", own.rotary},
          {"rope_theta", own.rope_theta},
          {"hidden_act", "silu"},
          {"use_qkv_bias", false},
          {"qk_layernorm", false}};
}

std::vector<models::Preset> presets() {
  const models::ModelShape tiny{.vocabulary = 257,
                                .hidden = 64,
                                .layers = 4,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 16,
                                .ffn = 176,
                                .positions = 256,
                                .tied = false};
  const models::ModelShape three_billion{.vocabulary = 50304,
                                         .hidden = 2560,
                                         .layers = 32,
                                         .heads = 32,
                                         .kv_heads = 32,
                                         .head_dim = 80,
                                         .ffn = 6912,
                                         .positions = 4096,
                                         .tied = false,
                                         .own = StableLmSizes{.parallel = false}};
  return {{"stablelm-tiny", tiny}, {"stablelm-3b", three_billion}};
}

}  // namespace

models::Architecture stablelm_architecture() {
  return {.name = "stablelm",
          .own = StableLmSizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "stablelm",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .prefix = "model.",
                           .ignored = {models::rotary_table()}}};
}
