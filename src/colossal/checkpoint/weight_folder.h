// The safetensors files of a Hugging Face folder as one table of tensors.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "colossal/checkpoint/safetensors.h"
#include "colossal/checkpoint/weight_source.h"

namespace colossal::checkpoint {

/// model.safetensors.index.json and the files it names, or model.safetensors.
///
/// Errors: throws Error("hugging face", ...) when there is neither, the index is malformed, names a file outside the
///         folder or a tensor that its file does not hold, or two files hold one name; and what SafetensorsReader
///         throws.
class WeightFolder final : public WeightSource {
 public:
  explicit WeightFolder(const std::string& folder);
  at::Tensor tensor(const std::string& name) const override { return owners_.at(name)->tensor(name); }
  void leave(const std::string& name) const override { owners_.at(name)->leave(name); }

 private:
  void open(const std::string& path);
  void open_index(const std::string& folder, const std::string& path);

  std::map<std::string, std::unique_ptr<SafetensorsReader>> readers_;  // by path
  std::map<std::string, const SafetensorsReader*> owners_;
};

}  // namespace colossal::checkpoint
