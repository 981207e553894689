#include "colossal/models/gpt2.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/models/transformer_block.h"
#include "colossal/ops/activation.h"

namespace colossal::models {
namespace gpt2 {  // the same names in every family

Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, kDeviation);
  std::shared_ptr<nn::Embedding> positions = layers.positions("positions", s.positions, s.hidden, kDeviation / 2);
  std::shared_ptr<nn::Dropout> dropout = layers.dropout("embedding.dropout", s.hidden, s.dropout);
  model.embed = [=](const at::Tensor& ids, const nn::Step& step) {
    return dropout->forward(tokens->forward(ids, step) + positions->forward(step.positions, step), step);
  };
  add_transformer_blocks(model, s, {.activation = ops::gelu}, layers);
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
  model.norm = [norm](const at::Tensor& x, const nn::Step&) { return norm->forward(x); };
  model.head = layers.lm_head("head", s.hidden, s.vocabulary,
                              {.deviation = kDeviation, .tied = s.tied ? tokens.get() : nullptr});
  return model;
}

void settle(ModelShape& s) { refuse_grouped_queries(s); }

ModelShape sized(int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads, int64_t positions) {
  return {.vocabulary = vocabulary,
          .hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / heads,
          .ffn = 4 * hidden,
          .positions = positions};
}

std::vector<Preset> presets() {
  // GPT-2: Radford et al. 2019, table 2. GPT-3: Brown et al. 2020 (arXiv:2005.14165), table 2.1.
  return {{"gpt2-tiny", sized(257, 128, 4, 4, 256)},         {"gpt2-small", sized(50257, 768, 12, 12, 1024)},
          {"gpt2-medium", sized(50257, 1024, 24, 16, 1024)}, {"gpt2-large", sized(50257, 1280, 36, 20, 1024)},
          {"gpt2-xl", sized(50257, 1600, 48, 25, 1024)},     {"gpt3-125m", sized(50257, 768, 12, 12, 2048)},
          {"gpt3-350m", sized(50257, 1024, 24, 16, 2048)},   {"gpt3-1.3b", sized(50257, 2048, 24, 32, 2048)},
          {"gpt3-2.7b", sized(50257, 2560, 32, 32, 2048)},   {"gpt3-6.7b", sized(50257, 4096, 32, 32, 2048)},
          {"gpt3-13b", sized(50257, 5120, 40, 40, 2048)},    {"gpt3-175b", sized(50257, 12288, 96, 96, 2048)}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  std::vector<nn::ExternalName> names{{"embedding.weight", {"transformer.wte.weight"}},
                                      {"positions.weight", {"transformer.wpe.weight"}},
                                      {"norm.weight", {"transformer.ln_f.weight"}},
                                      {"norm.bias", {"transformer.ln_f.bias"}}};
  const std::pair<const char*, const char*> linears[] = {{".attention.qkv", ".attn.c_attn"},
                                                         {".attention.out", ".attn.c_proj"},
                                                         {".mlp.up", ".mlp.c_fc"},
                                                         {".mlp.down", ".mlp.c_proj"}};
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string ours = concat("blocks.", i), theirs = concat("transformer.h.", i);
    for (const char* norm : {"1", "2"})
      for (const char* kind : {".weight", ".bias"})
        names.push_back({ours + ".norm_" + norm + kind, {theirs + ".ln_" + norm + kind}});
    for (const auto& [our_linear, their_linear] : linears) {
      names.push_back({ours + our_linear + ".weight", {theirs + their_linear + ".weight"}, true});
      names.push_back({ours + our_linear + ".bias", {theirs + their_linear + ".bias"}});
    }
  }
  if (!s.tied) names.push_back({"head.weight", {"lm_head.weight"}});
  return names;
}

ModelShape from_json(const nlohmann::json& j) {
  ModelShape s = sized(j.at("vocab_size"), j.at("n_embd"), j.at("n_layer"), std::max<int64_t>(1, j.at("n_head")),
                       j.at("n_positions"));
  if (j.contains("n_inner") && !j["n_inner"].is_null()) s.ffn = j["n_inner"];
  s.norm_epsilon = j.value("layer_norm_epsilon", 1e-5);
  s.dropout = j.value("resid_pdrop", 0.0);
  s.tied = j.value("tie_word_embeddings", true);
  const auto activation = j.value("activation_function", "gelu_new");
  require(activation == "gelu_new" || activation == "gelu_pytorch_tanh", "model",
          "activation_function of a GPT-2 must be gelu_new: got ", activation);
  require(j.value("scale_attn_weights", true) && !j.value("scale_attn_by_inverse_layer_idx", false), "model",
          "only GPT-2's own attention scale 1/sqrt(head_dim) is supported");
  return s;
}

nlohmann::json to_json(const ModelShape& s) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", s.vocabulary},
          {"n_embd", s.hidden},
          {"n_layer", s.layers},
          {"n_head", s.heads},
          {"n_positions", s.positions},
          {"n_ctx", s.positions},
          {"n_inner", s.ffn},
          {"layer_norm_epsilon", s.norm_epsilon},
          {"resid_pdrop", s.dropout},
          {"embd_pdrop", s.dropout},
          {"attn_pdrop", 0.0},
          {"tie_word_embeddings", s.tied},
          {"activation_function", "gelu_new"}};
}

}  // namespace gpt2

Architecture gpt2_architecture() {
  using namespace gpt2;
  return {.name = "gpt2",
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "gpt2",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .prefix = "transformer.",
                           .ignored = {"*.attn.bias", "*.attn.masked_bias"}}};
}

}  // namespace colossal::models
