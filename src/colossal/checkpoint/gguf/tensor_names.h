// Names of tensors in GGUF files and in Hugging Face folders.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/checkpoint/gguf/family.h"

namespace colossal::checkpoint {

/// The name of a tensor in the other format, and its change.
struct GgufPlace {
  std::string name;  ///< if the tensor is a stack of a file: the name in the folder, with `{}` for the index
  GgufChange change = GgufChange::None;
  int64_t entry = -1;  ///< index in the stack of the file; -1 = the tensor is no entry of a stack
};
/// Returns the name of a tensor in a folder and the conversion it needs; none = the table does not have it.
std::optional<GgufPlace> folder_place(const GgufFamily& family, const std::string& gguf_name,
                                      const formats::GgufFile& file);
/// Returns the same of the tensors in a file that hold a tensor of a folder: one, or keys and values of a latent.
/// Empty = the table does not have it.
std::vector<GgufPlace> gguf_places(const GgufFamily& family, const std::string& folder_name);
/// Returns the number of the layer that a name in a folder has; -1 = the tensor is outside the layers.
int64_t layer_of(const GgufFamily& family, const std::string& folder_name);
/// Returns true if a name in a folder stands for the entries of a stack, and the name of one of them.
bool is_stack_name(const std::string& name);
std::string name_of_entry(std::string name, int64_t entry);

}  // namespace colossal::checkpoint
