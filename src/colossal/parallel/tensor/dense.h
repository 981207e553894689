// A linear layer from hidden states to hidden states, at the ends of a model.
#pragma once
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/parallel/tensor/table.h"

namespace colossal::parallel {

/// A linear layer in which each rank multiplies its features of x by its columns of the weight, of which it has all
/// rows. The sum over the ranks that split features gives each rank its features of y. Ranks that hold the same hidden
/// states (1D) compute the same.
///
/// Shapes:        x [..., in_local] -> y [..., out_local], both split as layout.outside.
/// Communication: over the ranks that split features, a reduce_scatter of [..., out] in forward and an
///                all_gather of the same size in backward; 1D none. The weight's shards: see Table.
/// Errors:        an `out` that does not divide by the ranks that split features ("comm"), as hidden sizes must
///                (check_sizes).
class TensorDense : public nn::Dense {
 public:
  TensorDense(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, int64_t in, int64_t out,
              const nn::LinearOptions&);
  at::Tensor forward(const at::Tensor& x) override;

 private:
  comm::Group& features_;
  Table weight_;
  std::optional<Table> bias_;
};

}  // namespace colossal::parallel
