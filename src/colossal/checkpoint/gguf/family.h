// Maps names and values between GGUF files and Hugging Face folders: one table per family, used in both directions. A
// file is then read like the folder that it was made from, and a folder is written as a file.
//
// See: convert_hf_to_gguf.py and conversion/ of https://github.com/ggml-org/llama.cpp, which writes most files.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/formats/gguf_file.h"

namespace colossal::checkpoint {

/// How a tensor of a folder differs from the same tensor in a file.
enum class GgufChange {
  None,
  Transposed,    ///< matrices are [in, out] in the folder (GPT-2's Conv1D)
  QueryPairs,    ///< rotary pairs of a head are (i, i + half) in the folder, adjacent in the file (LLaMA)
  KeyPairs,      ///< like QueryPairs, with the number of key heads
  OneMore,       ///< the file has the folder's values + 1 (Gemma's norms)
  Groups,        ///< the folder interleaves q, k and v by head group; the file has all q, all k, all v
  LatentKeys,    ///< the file has the keys of the folder's tensor alone (latent_keys(), DeepSeek)
  LatentValues,  ///< like LatentKeys, with the values
};

/// Names of one tensor without the ending ".weight" or ".bias". If `folder` has `{}`, the file has a stack:
/// the folder has a tensor for each index of its dimension 0, such as an expert, with the index in place of `{}`.
/// A tensor of the folder with several rows is written as all of them.
struct GgufName {
  const char *gguf, *folder;
  GgufChange change = GgufChange::None;
  const char* unless = nullptr;  ///< the row is skipped in files whose layer also has this tensor; null = never
  bool is_whole = false;         ///< both names are complete: they have no further ending
  bool is_old = false;           ///< files of earlier converters have it; it is not written
};

/// A value that is "<architecture>.<gguf>" in a file and `config` in config.json.
struct GgufKey {
  enum class Kind { Integer, Real, Flag };
  const char *gguf, *config;
  Kind kind = Kind::Integer;
  bool optional = false;  ///< files may lack it: the folder then gets the default of transformers' class
};

struct GgufFamily {
  const char* architecture;  ///< general.architecture; two families may share it, of which one has experts
  const char* model_type;    ///< model_type in config.json
  const char* blocks;        ///< prefix of a layer's number in a folder's names; in a file it is "blk."
  /// Tensors outside the layers, and tensors of one layer.
  std::vector<GgufName> outside, in_block;
  std::vector<GgufKey> keys;
  /// Values of config.json that a file cannot store. When writing, config.json must have these values if it has the
  /// keys. When reading, they are added.
  nlohmann::json fixed;
  /// Keys of a file whose values follow from other keys.
  std::vector<std::string> implied;
  bool has_experts = false;      ///< the layers of its models are mixtures of experts
  const char* also = nullptr;    ///< a second model_type with the same table; null = none
  bool has_multi_token = false;  ///< folders may have multi-token layers after the last block, files do not
};

/// Returns the family of an architecture with or without experts. Errors: throws Error("gguf", ...) that lists the
/// known architectures, or names the key expert_count.
const GgufFamily& family_of_architecture(const std::string& architecture, const std::string& path,
                                         bool has_experts = false);
/// Returns the family of a file, which has experts if its expert_count is above 0. Errors: as above.
const GgufFamily& family_of(const formats::GgufFile& file);
/// Returns the family of a model_type, or null if such a folder cannot be written as a file.
const GgufFamily* family_of_model_type(const std::string& model_type);

/// Returns the config.json of the folder that corresponds to `file`.
/// Errors: throws Error("gguf", ...) with the file and key: an architecture that is not in the table, a key that is
///         missing, of another kind, or unknown (it might change results), parts of a split file, experts in an
///         architecture that has none here.
nlohmann::json config_of_gguf(const formats::GgufFile& file);

/// Content of a file for a model: its values without those of the tokenizer, and fp32 tensors that a folder stores in
/// config.json (factors of rotary frequencies).
struct GgufModel {
  formats::GgufValues values;
  std::vector<std::pair<std::string, std::vector<float>>> tensors;
};
/// Converts a config.json. Errors: throws Error("gguf", ...) with the value that llama.cpp does not support: a
/// model_type that is not in the table, or a key with another value than the family's fixed one.
GgufModel gguf_of_config(const nlohmann::json& config);

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

/// Numbers and sizes of attention heads, which conversions need.
struct GgufHeads {
  int64_t heads = 0, kv_heads = 0;
  /// Latent attention: features of a head's keys that are not rotated and that are, and of its values
  int64_t nope = 0, rotated = 0, value = 0;
};
/// Convert a tensor to the other format. to_folder() does not convert keys and values of a latent, which
/// latent_joined() joins. Errors: throws Error("gguf", ...) if the number of rows does not fit the heads.
at::Tensor to_folder(const at::Tensor& tensor, GgufChange change, const GgufHeads& heads);
at::Tensor to_gguf(const at::Tensor& tensor, GgufChange change, const GgufHeads& heads);

}  // namespace colossal::checkpoint
