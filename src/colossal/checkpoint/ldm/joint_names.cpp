#include "colossal/checkpoint/ldm/joint_names.h"

#include <array>

#include "colossal/base/error.h"
#include "colossal/checkpoint/ldm/renaming.h"

namespace colossal::checkpoint {
namespace {

constexpr LdmRows kSwapped{.swapped = true};

LdmPlace place(std::string name, LdmRows rows = {}) { return {"transformer", std::move(name), rows}; }

/// Returns the places of queries, keys and values in one tensor, of which `ending` is weight or bias. The file has
/// `others` further matrices of their size in it.
std::vector<LdmPlace> heads(const std::string& block, const std::array<const char*, 3>& names,
                            const std::string& ending, int64_t others = 0) {
  std::vector<LdmPlace> places;
  for (const char* name : names)
    places.push_back(
        place(concat(block, "attn.", name, ".", ending), {static_cast<int64_t>(places.size()), 1, 3 + others}));
  return places;
}

constexpr std::array kOfPatches{"to_q", "to_k", "to_v"}, kOfWords{"add_q_proj", "add_k_proj", "add_v_proj"};

/// Returns the places of a tensor outside of blocks, which both files name alike.
std::vector<LdmPlace> last_layer(std::string rest) {
  if (take(rest, "adaLN_modulation.1.")) return {place("norm_out.linear." + rest, kSwapped)};
  return {place(renamed(rest, {{"linear.", "proj_out."}}))};
}

std::vector<LdmPlace> sd3_stream(const std::string& block, std::string rest, bool is_context, bool is_last) {
  if (take(rest, "attn.qkv.")) return heads(block, is_context ? kOfWords : kOfPatches, rest);
  if (is_context && is_last && take(rest, "adaLN_modulation.1."))
    return {place(concat(block, "norm1_context.linear.", rest), kSwapped)};
  const std::vector<Renamed> of_patches{{"attn.ln_q.", "attn.norm_q."},   {"attn.ln_k.", "attn.norm_k."},
                                        {"attn.proj.", "attn.to_out.0."}, {"adaLN_modulation.1.", "norm1.linear."},
                                        {"mlp.fc1.", "ff.net.0.proj."},   {"mlp.fc2.", "ff.net.2."}},
      of_words{{"attn.ln_q.", "attn.norm_added_q."},   {"attn.ln_k.", "attn.norm_added_k."},
               {"attn.proj.", "attn.to_add_out."},     {"adaLN_modulation.1.", "norm1_context.linear."},
               {"mlp.fc1.", "ff_context.net.0.proj."}, {"mlp.fc2.", "ff_context.net.2."}};
  return {place(block + renamed(rest, is_context ? of_words : of_patches))};
}

std::vector<LdmPlace> flux_double(const std::string& block, std::string rest) {
  if (take(rest, "img_attn.qkv.")) return heads(block, kOfPatches, rest);
  if (take(rest, "txt_attn.qkv.")) return heads(block, kOfWords, rest);
  return {place(block + renamed(rest, {{"img_mod.lin.", "norm1.linear."},
                                       {"txt_mod.lin.", "norm1_context.linear."},
                                       {"img_attn.norm.query_norm.scale", "attn.norm_q.weight"},
                                       {"img_attn.norm.key_norm.scale", "attn.norm_k.weight"},
                                       {"txt_attn.norm.query_norm.scale", "attn.norm_added_q.weight"},
                                       {"txt_attn.norm.key_norm.scale", "attn.norm_added_k.weight"},
                                       {"img_attn.proj.", "attn.to_out.0."},
                                       {"txt_attn.proj.", "attn.to_add_out."},
                                       {"img_mlp.0.", "ff.net.0.proj."},
                                       {"img_mlp.2.", "ff.net.2."},
                                       {"txt_mlp.0.", "ff_context.net.0.proj."},
                                       {"txt_mlp.2.", "ff_context.net.2."}}))};
}

/// Queries, keys, values and the first matrix of the feed-forward layer, four times as large, are one tensor.
std::vector<LdmPlace> flux_single(const std::string& block, std::string rest) {
  if (take(rest, "linear1.")) {
    constexpr int64_t kOfMlp = 4;
    std::vector<LdmPlace> places = heads(block, kOfPatches, rest, kOfMlp);
    places.push_back(place(concat(block, "proj_mlp.", rest), {3, kOfMlp, 3 + kOfMlp}));
    return places;
  }
  return {place(block + renamed(rest, {{"linear2.", "proj_out."},
                                       {"modulation.lin.", "norm.linear."},
                                       {"norm.query_norm.scale", "attn.norm_q.weight"},
                                       {"norm.key_norm.scale", "attn.norm_k.weight"}}))};
}

}  // namespace

std::vector<LdmPlace> sd3_places(std::string name, int64_t blocks) {
  if (take(name, "final_layer.")) return last_layer(name);
  if (name == "pos_embed") return {place("pos_embed.pos_embed")};
  if (take(name, "joint_blocks.")) {
    const int64_t index = take_number(name);
    const std::string block = concat("transformer_blocks.", index, ".");
    for (const bool is_context : {true, false})
      if (take(name, is_context ? "context_block." : "x_block."))
        return sd3_stream(block, name, is_context, index + 1 == blocks);
    return {place(block + name)};
  }
  return {place(renamed(name, {{"x_embedder.proj.", "pos_embed.proj."},
                               {"t_embedder.mlp.0.", "time_text_embed.timestep_embedder.linear_1."},
                               {"t_embedder.mlp.2.", "time_text_embed.timestep_embedder.linear_2."},
                               {"y_embedder.mlp.0.", "time_text_embed.text_embedder.linear_1."},
                               {"y_embedder.mlp.2.", "time_text_embed.text_embedder.linear_2."}}))};
}

std::vector<LdmPlace> flux_places(std::string name) {
  if (take(name, "final_layer.")) return last_layer(name);
  if (take(name, "double_blocks.")) {
    const int64_t index = take_number(name);
    return flux_double(concat("transformer_blocks.", index, "."), name);
  }
  if (take(name, "single_blocks.")) {
    const int64_t index = take_number(name);
    return flux_single(concat("single_transformer_blocks.", index, "."), name);
  }
  return {place(renamed(name, {{"img_in.", "x_embedder."},
                               {"txt_in.", "context_embedder."},
                               {"time_in.in_layer.", "time_text_embed.timestep_embedder.linear_1."},
                               {"time_in.out_layer.", "time_text_embed.timestep_embedder.linear_2."},
                               {"vector_in.in_layer.", "time_text_embed.text_embedder.linear_1."},
                               {"vector_in.out_layer.", "time_text_embed.text_embedder.linear_2."},
                               {"guidance_in.in_layer.", "time_text_embed.guidance_embedder.linear_1."},
                               {"guidance_in.out_layer.", "time_text_embed.guidance_embedder.linear_2."}}))};
}

}  // namespace colossal::checkpoint
