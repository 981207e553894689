#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/families/t5.h"
#include "colossal/models/folder_config.h"
#include "colossal/ops/activation.h"

namespace colossal::models {
namespace {

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
  const std::string encoder_norm = own.encoder_only ? "norm" : concat("blocks.", encoder - 1, ".encoder_norm");
  const std::string table = ".block.0.layer.0.SelfAttention.relative_attention_bias.weight";
  std::vector<nn::ExternalName> names{{"embedding.weight", {"shared.weight"}},
                                      {"encoder_positions.weight", {"encoder" + table}},
                                      {encoder_norm + ".weight", {"encoder.final_layer_norm.weight"}}};
  if (!own.encoder_only) {
    names.push_back({"decoder_positions.weight", {"decoder" + table}});
    names.push_back({"norm.weight", {"decoder.final_layer_norm.weight"}});
  }
  if (!s.tied && !own.encoder_only) names.push_back({"head.weight", {"lm_head.weight"}});
  for (int64_t i = 0; i < s.layers; ++i) {
    const bool is_decoder = i >= encoder;
    add_block(names, concat("blocks.", i, "."),
              concat(is_decoder ? "decoder" : "encoder", ".block.", is_decoder ? i - encoder : i, "."), is_decoder,
              own.gated);
  }
  return names;
}

/// The row of the activation: `relu`, or for gates `gated-gelu`, whose GELU is the tanh approximation despite its name.
void feed_forward_key(FolderKeys& k, T5Sizes& own) {
  constexpr std::string_view kGated = "gated-";
  constexpr const char* kForward = "feed_forward_proj";
  // after `gated-`, the name of the exact GELU means the tanh approximation
  std::string name = !own.gated                     ? own.activation
                     : own.activation == "gelu_new" ? "gated-gelu"
                     : own.activation == "gelu"     ? "gated-gelu_python"
                                                    : "gated-" + own.activation;
  k.optional(kForward, name, "relu");
  if (k.writes()) return;
  own.gated = name.starts_with(kGated);
  own.activation = name == "gated-gelu" ? "gelu_new" : own.gated ? name.substr(kGated.size()) : name;
  const auto is_it = [&](const ops::Activation& known) { return known.name == own.activation; };
  require(std::any_of(ops::activations().begin(), ops::activations().end(), is_it), "model", kForward,
          " must be a known activation, or `gated-` and one: got ", name);
}

/// The rows of both classes.
void t5_common_keys(FolderKeys& k, ModelShape& s, T5Sizes& own) {
  k.only("is_decoder", false);
  k.optional("relative_attention_num_buckets", own.buckets, 32);
  k.optional("relative_attention_max_distance", own.max_distance, 128);
  feed_forward_key(k, own);
  k.required("vocab_size", s.vocabulary);
  k.required("d_model", s.hidden);
  k.required("num_heads", s.heads);
  s.kv_heads = s.heads;
  k.required("d_kv", s.head_dim);
  k.required("d_ff", s.ffn);
  k.optional("layer_norm_epsilon", s.norm_epsilon, 1e-6);
}

void t5_keys(FolderKeys& k, ModelShape& s, T5Sizes& own) {
  t5_common_keys(k, s, own);
  k.fixed("is_encoder_decoder", true);
  int64_t encoder = s.layers - own.decoder_layers, positions = std::max<int64_t>(1, s.positions / 2);
  k.required("num_layers", encoder);
  k.optional("num_decoder_layers", own.decoder_layers, encoder);
  s.layers = encoder + own.decoder_layers;
  int64_t padding = own.start_id;
  k.optional("pad_token_id", padding, 0);
  k.optional("decoder_start_token_id", own.start_id, padding);
  // Current versions of transformers always tie the tables, and store in another key whether the head's input is
  // scaled.
  k.optional("tie_word_embeddings", s.tied, true);
  k.omitted("scale_decoder_outputs", own.scaled_head, s.tied);
  k.optional("n_positions", positions, 512);
  s.positions = 2 * positions;
  k.optional("dropout_rate", s.dropout, 0.1);
}

/// The rows of an encoder alone. Keys of decoder and head have no effect.
void t5_encoder_keys(FolderKeys& k, ModelShape& s, T5Sizes& own) {
  t5_common_keys(k, s, own);
  k.written("is_encoder_decoder", false);
  k.required("num_layers", s.layers);
  k.optional("n_positions", s.positions, 512);
  k.written("dropout_rate", 0.0);
  k.written("tie_word_embeddings", false);
  if (!k.reads()) return;
  own.encoder_only = true;
  own.scaled_head = s.tied = false;
}

constexpr const char* kEncoderClass = "T5EncoderModel";

ModelShape t5_from_json(const nlohmann::json& j) {
  const FolderConfig config(j, "T5");
  const auto classes = config.value("architectures", nlohmann::json::array());
  const bool is_encoder = std::find(classes.begin(), classes.end(), kEncoderClass) != classes.end();
  return read_folder(config, is_encoder ? t5_encoder_keys : t5_keys);
}

nlohmann::json t5_to_json(const ModelShape& s) {
  if (s.own.as<T5Sizes>().encoder_only) return write_folder("t5", kEncoderClass, s, t5_encoder_keys);
  return write_folder("t5", "T5ForConditionalGeneration", s, t5_keys);
}

/// Returns a copy of the shared table. It must be equal whatever tie_word_embeddings says, because that ties only the
/// head.
nn::ExternalCopy table_copy(std::string name) {
  return {std::move(name), "shared.weight", "model_type t5",
          "remove it from the folder if shared.weight is the right table; a T5 with two tables is not read"};
}

/// Returns the tensors of a whole T5 that its encoder alone does not have.
std::vector<IgnoredTensor> left_out(const ModelShape& s) {
  if (!s.own.as<T5Sizes>().encoder_only) return {};
  const std::string reason = "the decoder, which a text encoder does not have";
  return {{"decoder.*", reason}, {"lm_head.weight", reason}};
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
          .left_out = left_out,
          .own_head = {"source_tokens", "start_id"}};
}

}  // namespace colossal::models
