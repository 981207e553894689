// The tensors of a GGUF file as those of the Hugging Face folder that it would be.
#pragma once
#include "colossal/base/gguf_file.h"
#include "colossal/checkpoint/gguf_family.h"
#include "colossal/checkpoint/weight_source.h"

namespace colossal::checkpoint {

/// Tensors whose names the family's table does not have keep theirs, so that who looks for weights finds them left
/// over. F32, F16 and BF16 are read as they are, other types as fp32, decoded when they are asked for.
///
/// Errors: throws Error("gguf", ...) for what GgufFile and config_of_gguf() refuse, and a tensor of a type that cannot
///         be decoded, with its name.
class GgufWeights final : public WeightSource {
 public:
  explicit GgufWeights(const std::string& path);
  /// A copy, but for F32, F16 and BF16 that lie alike in both.
  at::Tensor tensor(const std::string& name) const override;
  /// Returns the result of codes_of_gguf() with its rows in the order of the folder.
  std::optional<ops::GroupCodes> codes(const std::string& name) const override;
  void leave(const std::string& name) const override { file_.leave(*places_.at(name).tensor); }

  const GgufFile& file() const { return file_; }
  /// The tensor of the file that a name of the folder stands for: its raw blocks are file().bytes(). Null: none.
  const GgufTensor* raw(const std::string& name) const;

 private:
  struct Place {
    const GgufTensor* tensor;
    GgufChange change;
    TensorEntry entry;
  };
  GgufFile file_;
  GgufHeads heads_;
  std::map<std::string, Place> places_;
};

}  // namespace colossal::checkpoint
