// What GGUF files and Hugging Face folders call the same things: one table a family, read in both directions. A file is
// then read as the folder that it was made of, and a folder is written as a file.
//
// See: convert_hf_to_gguf.py and conversion/ of https://github.com/ggml-org/llama.cpp, whose program writes most files.
#pragma once
#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/gguf_file.h"

namespace colossal::checkpoint {

/// How a tensor of a folder differs from that of a file.
enum class GgufChange {
  None,
  Transposed,  ///< matrices are [in, out] in the folder (GPT-2's Conv1D)
  QueryPairs,  ///< features of a head turn by halves in the folder, by pairs of neighbours in the file (LLaMA)
  KeyPairs,    ///< the same of as many heads as keys have
  OneMore,     ///< the file has the folder's numbers + 1 (Gemma's norms)
  Groups,      ///< q, k and v of a group of heads are neighbours in the folder; the file has all q, all k, all v
};

/// Two names without their ending, ".weight" or ".bias".
struct GgufName {
  const char *gguf, *folder;
  GgufChange change = GgufChange::None;
  const char* unless = nullptr;  ///< the row does not count in files where the block has this tensor, too
};

/// A value under "<architecture>.<gguf>" and in config.json.
struct GgufKey {
  enum class Kind { Integer, Real, Flag };
  const char *gguf, *config;
  Kind kind = Kind::Integer;
  bool optional = false;  ///< files may lack it: the folder then means what transformers' class does
};

struct GgufFamily {
  const char* architecture;  ///< general.architecture
  const char* model_type;    ///< of config.json
  const char* blocks;        ///< what stands in front of the number of a block in a folder; in a file "blk."
  std::vector<GgufName> outside, in_block;
  std::vector<GgufKey> keys;
  /// What a file cannot say: config.json must have these values, where it has the keys, and is read as if it had.
  nlohmann::json fixed;
  /// Keys of a file that say what follows from others.
  std::vector<std::string> implied;
};

/// Errors: throws Error("gguf", ...) naming those there are.
const GgufFamily& family_of_architecture(const std::string& architecture, const std::string& path);
/// Null: folders of this type have no form as a file.
const GgufFamily* family_of_model_type(const std::string& model_type);

/// config.json of the folder that `file` would be.
/// Errors: throws Error("gguf", ...) naming file and key: an architecture that is not in the table, a key that is
///         missing, of another kind, or unknown (it might change numbers), parts of a split file, experts.
nlohmann::json config_of_gguf(const GgufFile& file);

/// What a file says of a model: its values without the tokenizer's, and tensors of fp32 numbers that a folder has in
/// its config.json (factors of rotary frequencies).
struct GgufModel {
  GgufValues values;
  std::vector<std::pair<std::string, std::vector<float>>> tensors;
};
/// Errors: throws Error("gguf", ...) naming what llama.cpp cannot compute: a model_type that is not in the table, a key
///         with another value than the family's fixed one.
GgufModel gguf_of_config(const nlohmann::json& config);

struct GgufPlace {
  std::string name;
  GgufChange change = GgufChange::None;
};
/// Where a tensor lies in the other form. Nothing: the table does not know it.
std::optional<GgufPlace> folder_place(const GgufFamily& family, const std::string& gguf_name, const GgufFile& file);
std::optional<GgufPlace> gguf_place(const GgufFamily& family, const std::string& folder_name);

/// Heads of attention, as changes need them.
struct GgufHeads {
  int64_t heads = 0, kv_heads = 0;
};
/// Errors: throws Error("gguf", ...) where rows are not those of the heads.
at::Tensor to_folder(const at::Tensor& tensor, GgufChange change, const GgufHeads& heads);
at::Tensor to_gguf(const at::Tensor& tensor, GgufChange change, const GgufHeads& heads);

}  // namespace colossal::checkpoint
