// The families of models that GGUF files have: one table per family of the names and values of its Hugging Face
// folders, used in both directions. A file is then read like the folder that it was made from, and a folder is written
// as a file.
//
// See: convert_hf_to_gguf.py and conversion/ of https://github.com/ggml-org/llama.cpp, which writes most files.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/checkpoint/gguf/tensor_change.h"
#include "colossal/formats/gguf_file.h"

namespace colossal::checkpoint {

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

}  // namespace colossal::checkpoint
