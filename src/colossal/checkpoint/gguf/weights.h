// Reads a GGUF file as if it were the corresponding Hugging Face folder.
#pragma once
#include <string_view>

#include "colossal/checkpoint/gguf/tensor_names.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/formats/gguf_file.h"

namespace colossal::checkpoint {

/// The weights of a GGUF file, under the names of a Hugging Face folder. Tensors that the family's table does not have
/// keep their names, so that import_weights reports them as unexpected. F32, F16 and BF16 are read as they are.
/// Other types are decoded to fp32 on each call of tensor(). A stack of experts is a tensor for each expert here, which
/// is read and decoded by itself.
///
/// Errors: throws Error("gguf", ...) for files that formats::GgufFile or config_of_gguf() refuse, and for a tensor of a
///         type that cannot be decoded, a stack of another number of experts, or keys of a latent without values,
///         with its name.
class GgufWeights final : public WeightSource {
 public:
  explicit GgufWeights(const std::string& path);
  /// Returns a copy, or a view if the type is F32, F16 or BF16 and both formats have the same order.
  at::Tensor tensor(const std::string& name) const override;
  /// Returns the result of codes_of_gguf() with its rows in the order of the folder.
  std::optional<ops::GroupCodes> codes(const std::string& name) const override;
  void leave(const std::string& name) const override;
  bool can_wait(const std::string& name) const override;
  std::optional<CodesForm> codes_form(const std::string& name) const override;

  const formats::GgufFile& file() const { return file_; }
  /// Returns the tensor of the file with this name in the folder; null = none. Its raw blocks are file().bytes(). For
  /// an expert it is the stack, and null if two tensors hold keys and values of a latent.
  const formats::GgufTensor* raw(const std::string& name) const;

 private:
  struct Place {
    const formats::GgufTensor* tensor = nullptr;  // for a latent, the tensor of its keys
    GgufChange change = GgufChange::None;
    TensorEntry entry;
    int64_t index = -1;                           // index of the entry of a stack; -1 = the whole tensor
    const formats::GgufTensor* values = nullptr;  // for a latent, the tensor of its values; else null
  };
  static bool may_be_codes(const Place& place);
  void add(const formats::GgufTensor& tensor, const GgufPlace& place);
  void add_latent(const formats::GgufTensor& tensor, const GgufPlace& place);
  void check_latents() const;
  std::string_view blocks(const Place& place) const;
  at::Tensor read(const Place& place) const;

  formats::GgufFile file_;
  GgufHeads heads_;
  std::map<std::string, Place> places_;
};

}  // namespace colossal::checkpoint
