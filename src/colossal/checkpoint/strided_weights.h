// The tensors of files of PyTorch and NumPy, as weights: a checkpoint of torch.save, the pytorch_model.bin of a folder
// or its parts, an .npz file.
//
//   const auto weights = open_strided_weights("finetuning_ptm_2.pt");
//   const at::Tensor value = weights->tensor("evoformer.blocks.0.pair_stack.tri_mul_out.linear_a_p.weight");
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "colossal/checkpoint/weight_source.h"
#include "colossal/formats/tensor_file.h"

namespace colossal::checkpoint {

/// Reads files whose tensors may have strides and share storages. tensor() and row() return contiguous copies; row()
/// reads the elements of its row alone.
///
/// Errors: throws Error("hugging face", ...) if two files have one name; a damaged tensor has the error of its file.
class StridedWeights final : public WeightSource {
 public:
  explicit StridedWeights(std::vector<std::unique_ptr<formats::TensorFile>> files);
  at::Tensor tensor(const std::string& name) const override;
  at::Tensor row(const std::string& name, int64_t row) const override;
  void leave(const std::string&) const override {}

 private:
  struct Stored {
    const formats::TensorFile* file;
    const formats::StridedTensor* place;
    TensorEntry entry;
  };
  std::vector<std::unique_ptr<formats::TensorFile>> files_;
  std::map<std::string, Stored> stored_;
};

/// Returns true for the name of a file that open_strided_weights() opens: .bin, .ckpt, .npz, .pt or .pth at its end.
bool has_strided_name(const std::string& file);

/// Returns true for a file with such a name.
bool is_strided_file(const std::string& path);

/// Opens a file of numpy.savez, which ends in .npz, or else one of torch.save (formats::TorchFile, which says where
/// weights may be in it). No code of a file is run. Errors: those of formats::NpzFile or formats::TorchFile.
std::unique_ptr<WeightSource> open_strided_weights(const std::string& file);

/// Opens the pickles of a folder without weights in safetensors: pytorch_model.bin, or pytorch_model.bin.index.json and
/// the files that it names; in a folder of diffusers diffusion_pytorch_model in place of pytorch_model. A folder that
/// has only the variant fp16 is read from it. Null = the folder has safetensors, or none of these files.
/// Errors: throws Error("hugging face", ...) if the index is malformed, names a file outside the folder or a tensor
///         that its file does not hold; errors of formats::TorchFile.
std::unique_ptr<WeightSource> open_pickled_folder(const std::string& folder);

}  // namespace colossal::checkpoint
