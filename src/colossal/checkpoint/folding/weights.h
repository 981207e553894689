// AlphaFold 2's weights in a file of AlphaFold or OpenFold, under the names of OpenFold.
//
//   const auto weights = open_weights("params_model_1_ptm.npz");               // FoldingWeights
//   const at::Tensor value = weights->tensor("evoformer.blocks.0.pair_stack.tri_mul_out.linear_a_p.weight");
//   const nlohmann::json config = read_config("params_model_1_ptm.npz");       // config_of(*weights, ...)
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "colossal/checkpoint/folding/names.h"
#include "colossal/checkpoint/weight_source.h"

namespace colossal::checkpoint {

/// Presents the tensors of a file as matrices [out, in] and vectors, one for each block. Tensors that a monomer does
/// not have keep their names, so that an import reports them.
class FoldingWeights final : public WeightSource {
 public:
  /// Returns a source that presents `file`, or `file` itself if it does not hold the weights of AlphaFold 2. `path`:
  /// its name in messages. Errors ("hugging face"): two tensors that have one place; one with too few dimensions.
  static std::unique_ptr<WeightSource> of(std::unique_ptr<WeightSource> file, const std::string& path);

  at::Tensor tensor(const std::string& name) const override;
  void leave(const std::string&) const override {}

 private:
  struct Stored {
    std::string name{};  // in the file
    int64_t block = -1;  // of a stack
    AlphaFoldForm form = AlphaFoldForm::Vector;
    bool is_as_stored = true;
    TensorEntry entry{};  // as it is presented
  };
  FoldingWeights(std::unique_ptr<WeightSource> file, const std::string& path);
  void add(const std::string& name, Stored stored, const std::string& path);

  std::unique_ptr<WeightSource> file_;
  std::map<std::string, Stored> stored_;
};

/// Returns the config.json of the model whose weights a file of AlphaFold or OpenFold holds, with sizes that follow
/// from the shapes of tensors. Numbers that no shape shows are those of the published models: 8 layers of the structure
/// module, and in a file of OpenFold 4 heads of the attention to templates.
/// Errors ("hugging face"): a file without such weights, or without a tensor whose shape is needed.
nlohmann::json folding_config(const std::string& path);

}  // namespace colossal::checkpoint
