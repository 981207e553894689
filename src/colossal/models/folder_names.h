// How the Hugging Face folders of a family name what our models have, as one table: which of the parameters a model of
// some shape has (biases, a head of its own, a second norm) is found by declaring it.
//
//   std::vector<nn::ExternalName> external_names(const ModelShape& s) {
//     return names_in_folder(s, {.outside = {{"embedding", {"model.embed_tokens"}}, {"norm", {"model.norm"}}},
//                                .blocks = "model.layers.",
//                                .in_block = {{"norm_1", {"input_layernorm"}},
//                                             {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", ...}}, ...}});
//   }
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "colossal/models/registry.h"
#include "colossal/models/shape.h"
#include "colossal/nn/external_name.h"

namespace colossal::models {

/// A row is of a layer, whose parameters end alike there and here (".weight", ".bias"), or of the one parameter that it
/// names whole. Of those that a shape does not have nothing is said.
struct FolderNames {
  std::vector<nn::ExternalName> outside{};   ///< of what stands outside the blocks
  std::string blocks{};                      ///< what stands in front of the number of a block there
  std::vector<nn::ExternalName> in_block{};  ///< of what a block has, behind "blocks.<i>." here and that number there
};

/// Where each parameter of a model of `shape` lies. Errors ("model"): a parameter without a row.
/// Cost: the model is declared once, without memory.
std::vector<nn::ExternalName> names_in_folder(const ModelShape& shape, const FolderNames& names);

/// Tensors that a folder of `shape` may hold beside those: the head of a model whose embedding is its head, too, and
/// HuggingFace::copies.
std::vector<nn::ExternalCopy> copies_in_folder(const ModelShape& shape);

/// A copy of `original` for models whose tie_word_embeddings is true.
nn::ExternalCopy tied_copy(std::string name, std::string original);

/// The frequencies of rotary positions, which folders of older versions hold.
IgnoredTensor rotary_table(std::string name = "*.rotary_emb.inv_freq");
/// The causal mask, or the score of what it hides, which folders of older versions hold.
IgnoredTensor causal_mask(std::string name);

}  // namespace colossal::models
