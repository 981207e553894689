// The safetensors files of a Hugging Face folder as one table of tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "colossal/checkpoint/safetensors.h"

namespace colossal::checkpoint {

/// model.safetensors.index.json and the files it names, or model.safetensors.
///
/// Errors: throws Error("hugging face", ...) when there is neither, the index is malformed, names a file outside the
///         folder or a tensor that its file does not hold, or two files hold one name; and what SafetensorsReader
///         throws.
class WeightFolder {
 public:
  explicit WeightFolder(const std::string& folder);
  /// The name that a tensor has in this folder: as given, else without `prefix`, else with it in front.
  std::optional<std::string> find(const std::string& name, const std::string& prefix) const;
  /// All tensors, by their name in the folder.
  const std::map<std::string, const TensorEntry*>& entries() const { return entries_; }
  /// A read-only view.
  at::Tensor tensor(const std::string& name) const { return owners_.at(name)->tensor(name); }
  /// See SafetensorsReader::leave().
  void leave(const std::string& name) const { owners_.at(name)->leave(name); }

 private:
  void open(const std::string& path);
  void open_index(const std::string& folder, const std::string& path);

  std::map<std::string, std::unique_ptr<SafetensorsReader>> readers_;  // by path
  std::map<std::string, const TensorEntry*> entries_;
  std::map<std::string, const SafetensorsReader*> owners_;
};

}  // namespace colossal::checkpoint
