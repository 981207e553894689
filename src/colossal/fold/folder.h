// Folds chains with a loaded model: passes with recycling, on all ranks of its layout.
//
//   const run::SavedModel saved = run::load_model("esmfold_v1", mesh, layout, at::kCPU, {.tokenizer = "none"});
//   fold::Folder folder(*saved.model, mesh);
//   const fold::Folded one = folder.fold(sequence_input({"one", {"MKTAYIAK"}}, folder.shape()), {.passes = 3});
#pragma once
#include <cstdint>
#include <functional>

#include "colossal/comm/mesh.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/fold/fold.h"
#include "colossal/fold/fold_input.h"

namespace colossal::fold {

/// A pass that has ended.
struct FoldedPass {
  int64_t pass = 0;   ///< from 1
  double plddt = 0;   ///< mean of the CA atoms
  double change = 0;  ///< mean change of the distances of CA atoms since the pass before, in Angstrom; 0 in the first
};

class Folder {
 public:
  /// `mesh` has the axes of the model's layout, and both must outlive the folder. Errors ("fold"): a model that does
  /// not fold proteins; weights in fp16, whose range is too small.
  Folder(distributed::DistributedModel& model, comm::Mesh& mesh);

  /// Folds one chain or complex, and returns the same result on all ranks. `each_pass`, which may be null, is called
  /// after each pass on all ranks.
  /// Memory: z of a pass is handed to the next one, which overwrites it, so there is one. Heads of pairs are computed
  ///         by rows, so that of their logits only N^2 numbers stay.
  /// Communication: that of the passes. After each pass, a few numbers go from the last stage to all, and s, z and the
  ///                places of CB to the stage that reads them; after the last one the result, to all.
  /// Errors ("fold"): those of FoldOptions::check(). Errors ("data"): a field that the model reads and the input lacks.
  Folded fold(const FoldInput& input, const FoldOptions& options,
              const std::function<void(const FoldedPass&)>& each_pass = nullptr);

  const models::ModelShape& shape() const;
  /// Returns true if the model predicts errors of aligned points, and so pTM.
  bool predicts_errors() const;

 private:
  struct Chain;
  struct PassResult;
  void run_pass(Chain& chain);
  void take_results(Chain& chain, const models::States& end, const tensor::Batch& batch) const;
  void take_errors(Chain& chain, const at::Tensor& pairs) const;
  tensor::Batch fields_of_pass(const Chain& chain) const;
  int reader() const;
  void hand_over(Chain& chain);
  at::Tensor from_last_stage(const at::Tensor& value, at::IntArrayRef sizes, at::ScalarType dtype);
  Folded gathered(Chain& chain);
  int64_t peak_of_ranks(int64_t own);

  distributed::DistributedModel& model_;
  comm::Mesh& mesh_;
};

}  // namespace colossal::fold
