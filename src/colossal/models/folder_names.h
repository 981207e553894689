// The names of our parameters in the Hugging Face folders of a family, as one table. The parameters that a model of
// some shape has (biases, an untied head, a second norm) are found by declaring the model.
//
//   std::vector<nn::ExternalName> external_names(const ModelShape& s) {
//     return names_in_folder(s, {.outside = {{"embedding", {"model.embed_tokens"}}, {"norm", {"model.norm"}}},
//                                .blocks = "model.layers.",
//                                .in_block = {{"norm_1", {"input_layernorm"}},
//                                             {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", ...}}, ...}});
//   }
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/models/registry.h"
#include "colossal/models/shape.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/external_name.h"

namespace colossal::models {

/// A table of names in a folder. A row names either a layer, whose parameters have the same endings in both (".weight",
/// ".bias"), or one parameter by its whole name. Rows for parameters that a shape does not have are ignored.
struct FolderNames {
  /// Layers outside the blocks, and those of one block alone ("blocks.5.end_norm"), by their whole names
  std::vector<nn::ExternalName> outside{};
  std::string blocks{};  ///< prefix of a block's number in the folder
  /// Prefixes of all blocks in a folder that does not number them in the order of the model; empty = it does
  std::vector<std::string> each_block{};
  /// Layers of a block; names follow "blocks.<i>." here, and the block's number in the folder
  std::vector<nn::ExternalName> in_block{};
  /// Blocks outside Model::blocks: the prefix of their parameters here, and in the folder. Rows of in_block name them
  std::vector<std::pair<std::string, std::string>> further_blocks{};
};

/// Returns the place of each parameter of a model of `shape` in the folder. Errors ("model"): a parameter without a
/// row. Buffers are included if they have a row.
/// Cost: the model is declared once, without memory.
std::vector<nn::ExternalName> names_in_folder(const ModelShape& shape, const FolderNames& names);

// The order of attention heads differs in some folders. Ours is q of all heads, then k, then v.

/// Returns the rows of q, k and v in a tensor that stores groups. A group is the q heads that share one k head, then
/// this k head, then its v head (GPT-NeoX and BLOOM: one group per head; Falcon: per kv head).
std::vector<nn::ExternalRows> heads_in_groups(const std::string& tensor, const nn::AttentionShape& shape);

/// Returns the rows of `heads` heads of `size` features whose first `turned` features are rotated. The folder rotates
/// pairs of neighbours, 0 and 1, 2 and 3 (GPT-J); our models rotate pairs i and i + turned / 2. Scores are the same if
/// q and k are both reordered.
std::vector<nn::ExternalRows> heads_of_pairs(const std::string& tensor, int64_t heads, int64_t size, int64_t turned);

/// Returns further tensors that a folder of `shape` may contain: the head of a model with a tied head, and
/// HuggingFace::copies and copies_of.
std::vector<nn::ExternalCopy> copies_in_folder(const ModelShape& shape);

/// Returns a copy of `original` for models whose tie_word_embeddings is true.
nn::ExternalCopy tied_copy(std::string name, std::string original);

/// Returns the tensor of rotary frequencies that folders of older versions contain.
IgnoredTensor rotary_table(std::string name = "*.rotary_emb.inv_freq");
/// Returns the tensor of the causal mask, or of the score of masked pairs, that folders of older versions contain.
IgnoredTensor causal_mask(std::string name);

}  // namespace colossal::models
