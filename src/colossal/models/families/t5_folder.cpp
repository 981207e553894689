#include "colossal/models/families/t5_folder.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/families/t5_sizes.h"
#include "colossal/models/folder_config.h"
#include "colossal/ops/activation.h"

namespace colossal::models {
namespace {

constexpr const char* kForward = "feed_forward_proj";

/// Adds the names of one block. The folder numbers its branches: attention, attention to the source (decoder only),
/// feed-forward.
void add_block(std::vector<nn::ExternalName>& names, const std::string& ours, const std::string& theirs,
               bool is_decoder, bool gated) {
  const std::string end = ".weight";
  int branch = 0;
  const auto add_norm = [&](const std::string& folder) {
    names.push_back({concat(ours, "norm_", branch + 1, end), {folder + "layer_norm" + end}});
  };
  const auto add_attention = [&](const char* mine, const char* yours) {
    const std::string folder = concat(theirs, "layer.", branch, "."), there = folder + yours + ".", name = ours + mine;
    add_norm(folder);
    names.push_back({name + ".q" + end, {there + "q" + end}});
    names.push_back({name + ".kv" + end, {there + "k" + end, there + "v" + end}});
    names.push_back({name + ".out" + end, {there + "o" + end}});
    ++branch;
  };
  add_attention("attention", "SelfAttention");
  if (is_decoder) add_attention("cross", "EncDecAttention");
  const std::string folder = concat(theirs, "layer.", branch, "."), there = folder + "DenseReluDense.";
  add_norm(folder);
  if (gated)
    names.push_back({ours + "mlp.gate_up" + end, {there + "wi_0" + end, there + "wi_1" + end}});
  else
    names.push_back({ours + "mlp.up" + end, {there + "wi" + end}});
  names.push_back({ours + "mlp.down" + end, {there + "wo" + end}});
}

std::vector<nn::ExternalName> t5_names(const ModelShape& s) {
  const auto own = s.own.as<T5Sizes>();
  const int64_t encoder = s.layers - own.decoder_layers;
  const std::string table = ".block.0.layer.0.SelfAttention.relative_attention_bias.weight";
  std::vector<nn::ExternalName> names{
      {"embedding.weight", {"shared.weight"}},
      {"encoder_positions.weight", {"encoder" + table}},
      {"decoder_positions.weight", {"decoder" + table}},
      {concat("blocks.", encoder - 1, ".encoder_norm.weight"), {"encoder.final_layer_norm.weight"}},
      {"norm.weight", {"decoder.final_layer_norm.weight"}}};
  if (!s.tied) names.push_back({"head.weight", {"lm_head.weight"}});
  for (int64_t i = 0; i < s.layers; ++i) {
    const bool is_decoder = i >= encoder;
    add_block(names, concat("blocks.", i, "."),
              concat(is_decoder ? "decoder" : "encoder", ".block.", is_decoder ? i - encoder : i, "."), is_decoder,
              own.gated);
  }
  return names;
}

/// Reads `relu`, or for gates `gated-gelu`, whose GELU is the tanh approximation despite its name.
void read_feed_forward(const FolderConfig& c, T5Sizes& own) {
  constexpr std::string_view kGated = "gated-";
  const std::string name = c.value(kForward, "relu");
  own.gated = name.starts_with(kGated);
  own.activation = name == "gated-gelu" ? "gelu_new" : own.gated ? name.substr(kGated.size()) : name;
  const auto is_it = [&](const ops::Activation& known) { return known.name == own.activation; };
  require(std::any_of(ops::activations().begin(), ops::activations().end(), is_it), "model", kForward,
          " must be a known activation, or `gated-` and one: got ", name);
}

ModelShape t5_from_json(const nlohmann::json& j) {
  const FolderConfig c(j, "T5");
  c.must_be("is_decoder", false);
  c.must_be("is_encoder_decoder", true);
  T5Sizes own;
  const auto encoder = c.at<int64_t>("num_layers");
  own.decoder_layers = c.value("num_decoder_layers", encoder);
  own.buckets = c.value("relative_attention_num_buckets", int64_t{32});
  own.max_distance = c.value("relative_attention_max_distance", int64_t{128});
  own.start_id = c.value("decoder_start_token_id", c.value("pad_token_id", int64_t{0}));
  read_feed_forward(c, own);
  // Current versions of transformers always tie the tables, and store in another key whether the head's input is
  // scaled.
  const bool tied = c.value("tie_word_embeddings", true);
  own.scaled_head = c.value("scale_decoder_outputs", tied);
  return {.vocabulary = c.at<int64_t>("vocab_size"),
          .hidden = c.at<int64_t>("d_model"),
          .layers = encoder + own.decoder_layers,
          .heads = c.at<int64_t>("num_heads"),
          .kv_heads = c.at<int64_t>("num_heads"),
          .head_dim = c.at<int64_t>("d_kv"),
          .ffn = c.at<int64_t>("d_ff"),
          .positions = 2 * c.value("n_positions", int64_t{512}),
          .norm_epsilon = c.value("layer_norm_epsilon", 1e-6),
          .dropout = c.value("dropout_rate", 0.1),
          .tied = tied,
          .own = own};
}

nlohmann::json t5_to_json(const ModelShape& s) {
  const auto own = s.own.as<T5Sizes>();
  // after `gated-`, the name of the exact GELU means the tanh approximation
  const std::string activation = !own.gated                     ? own.activation
                                 : own.activation == "gelu_new" ? "gelu"
                                 : own.activation == "gelu"     ? "gelu_python"
                                                                : own.activation;
  nlohmann::json config{{"architectures", {"T5ForConditionalGeneration"}},
                        {"model_type", "t5"},
                        {"is_encoder_decoder", true},
                        {"vocab_size", s.vocabulary},
                        {"d_model", s.hidden},
                        {"d_kv", s.head_dim},
                        {"d_ff", s.ffn},
                        {"num_layers", s.layers - own.decoder_layers},
                        {"num_decoder_layers", own.decoder_layers},
                        {"num_heads", s.heads},
                        {"n_positions", std::max<int64_t>(1, s.positions / 2)},
                        {"relative_attention_num_buckets", own.buckets},
                        {"relative_attention_max_distance", own.max_distance},
                        {"layer_norm_epsilon", s.norm_epsilon},
                        {"dropout_rate", s.dropout},
                        {kForward, own.gated ? "gated-" + activation : activation},
                        {"pad_token_id", own.start_id},
                        {"decoder_start_token_id", own.start_id},
                        {"tie_word_embeddings", s.tied}};
  if (s.tied != own.scaled_head) config["scale_decoder_outputs"] = own.scaled_head;
  return config;
}

/// Returns a copy of the shared table. It must be equal whatever tie_word_embeddings says, because that ties only the
/// head.
nn::ExternalCopy table_copy(std::string name) {
  return {std::move(name), "shared.weight", "model_type t5",
          "remove it from the folder if shared.weight is the right table; a T5 with two tables is not read"};
}

}  // namespace

HuggingFace t5_folder() {
  return {.model_type = "t5",
          .names = t5_names,
          .from_json = t5_from_json,
          .to_json = t5_to_json,
          .head = "lm_head.weight",
          .copies = {table_copy("encoder.embed_tokens.weight"), table_copy("decoder.embed_tokens.weight")},
          .ignored = {{"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
                       "attention to the source has no relative positions"}},
          .own_head = {"source_tokens", "start_id"}};
}

}  // namespace colossal::models
