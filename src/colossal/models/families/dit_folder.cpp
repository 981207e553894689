// DiT as diffusers stores it.
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/diffusers_config.h"
#include "colossal/models/families/dit.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"

namespace colossal::models {

namespace dit {

constexpr const char *kClass = "DiTTransformer2DModel", *kBlocks = "transformer_blocks.";
constexpr double kEpsilon = 1e-6;  // of the first norm of a block, which is no key there

/// Layers outside of blocks here, and their names after the number of a block in the folder.
const std::pair<const char*, const char*> kEmbedders[] = {
    {"time.linear_1.weight", "norm1.emb.timestep_embedder.linear_1.weight"},
    {"time.linear_1.bias", "norm1.emb.timestep_embedder.linear_1.bias"},
    {"time.linear_2.weight", "norm1.emb.timestep_embedder.linear_2.weight"},
    {"time.linear_2.bias", "norm1.emb.timestep_embedder.linear_2.bias"},
    {"classes.weight", "norm1.emb.class_embedder.embedding_table.weight"}};

/// The row of the channels that are predicted, which may be missing: then they are those that are read.
void out_channels_key(FolderKeys& k, DitSizes& own) {
  int64_t outputs = own.outputs();
  k.or_null("out_channels", outputs, 0);
  if (!k.reads()) return;
  if (outputs == 0) outputs = own.channels;
  require(outputs == own.channels || outputs == 2 * own.channels, "model",
          "out_channels must be in_channels, or twice as many with a learned variance: got ", outputs, " and ",
          own.channels);
  own.learned_sigma = outputs != own.channels;
}

void keys(FolderKeys& k, ModelShape& s, DitSizes& own) {
  k.optional("num_attention_heads", s.heads, 16);
  k.optional("attention_head_dim", s.head_dim, 72);
  k.optional("in_channels", own.channels, 4);
  out_channels_key(k, own);
  k.optional("num_layers", s.layers, 28);
  k.optional("sample_size", own.height, 32);
  k.optional("patch_size", own.patch, 2);
  k.optional("num_embeds_ada_norm", own.classes, 1000);
  k.optional("norm_eps", own.mlp_epsilon, 1e-5);
  k.fixed("activation_fn", "gelu-approximate");
  k.fixed("attention_bias", true);
  k.fixed("norm_type", "ada_norm_zero");
  k.fixed("norm_elementwise_affine", false);
  k.fixed("dropout", 0.0);
  k.written("norm_num_groups", 32);      // of another class of models; not read there
  k.written("upcast_attention", false);  // softmax has fp32 at least here
  if (!k.reads()) return;
  own.width = own.height;
  own.freq_shift = 1;
  s.hidden = s.heads * s.head_dim;
  s.kv_heads = s.heads;
  s.ffn = 4 * s.hidden;
  s.norm_epsilon = kEpsilon;
  s.tied = false;
}

}  // namespace dit

std::vector<nn::ExternalName> dit_diffusers_names(const ModelShape& shape) {
  FolderNames names{
      .outside = {{"patches", {"pos_embed.proj"}}, {"norm.modulation", {"proj_out_1"}}, {"head", {"proj_out_2"}}},
      .blocks = dit::kBlocks,
      .in_block = {{"modulation", {"norm1.linear"}},
                   {"attention.qkv", {"attn1.to_q", "attn1.to_k", "attn1.to_v"}},
                   {"attention.out", {"attn1.to_out.0"}},
                   {"mlp.up", {"ff.net.0.proj"}},
                   {"mlp.down", {"ff.net.2"}}}};
  for (const auto& [ours, theirs] : dit::kEmbedders)
    names.outside.push_back({ours, {concat(dit::kBlocks, "0.", theirs)}});
  return names_in_folder(shape, names);
}

std::vector<nn::ExternalCopy> dit_diffusers_copies(const ModelShape& shape) {
  std::vector<nn::ExternalCopy> copies;
  for (int64_t i = 1; i < shape.layers; ++i)
    for (const auto& [ours, theirs] : dit::kEmbedders)
      copies.push_back({concat(dit::kBlocks, i, ".", theirs), concat(dit::kBlocks, "0.", theirs),
                        "a DiT has one embedder of times and one of classes, which",
                        "a model whose blocks were trained with embedders of their own cannot be read"});
  return copies;
}

ModelShape dit_from_diffusers(const nlohmann::json& config) {
  nlohmann::json known;  // the keys that are written are those that the class has
  FolderKeys writer(known);
  ModelShape example;
  DitSizes sizes;
  dit::keys(writer, example, sizes);
  check_diffusers_config(config, dit::kClass, known);
  return settled(read_folder(FolderConfig(config, "DiT"), dit::keys), "dit");
}

nlohmann::json dit_to_diffusers(const ModelShape& shape) {
  const auto own = shape.own.as<DitSizes>();
  const auto check = [](bool is_right, const char* key, const auto& rule, const auto& got) {
    require(is_right, "model", "diffusers computes a DiT only with ", key, " = ", rule, ": got ", got,
            "; train the model with that value");
  };
  check(own.freq_shift == 1, "freq_shift", 1, own.freq_shift);
  check(own.height == own.width, "width", concat("height, ", own.height), own.width);
  check(shape.ffn == 4 * shape.hidden, "ffn", concat("4 * hidden, ", 4 * shape.hidden), shape.ffn);
  check(shape.norm_epsilon == dit::kEpsilon, "norm_epsilon", dit::kEpsilon, shape.norm_epsilon);
  nlohmann::json j{{"_class_name", dit::kClass}, {"_diffusers_version", "0.42.1"}};
  FolderKeys k(j);
  ModelShape written = shape;
  DitSizes sizes = own;
  dit::keys(k, written, sizes);
  return j;
}

}  // namespace colossal::models
