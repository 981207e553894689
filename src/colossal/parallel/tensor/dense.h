// A linear layer from hidden states to hidden states, at the ends of a model.
#pragma once
#include "colossal/nn/layers.h"
#include "colossal/parallel/tensor/table.h"

namespace colossal::parallel {

/// Each rank multiplies its features of x with its columns of the weight, whose rows it has all; the sum over the ranks
/// that split features gives each its features of y. Ranks that hold the same hidden states (1D) compute the same.
///
/// Shapes:        x [..., in_local] -> y [..., out_local], both cut as layout.outside.
/// Communication: over the ranks that split features a reduce_scatter of [..., out] in forward, an all_gather of as
///                much in backward; 1D none. The weight's pieces: see Table.
/// Errors:        an `out` that does not divide by the ranks that split features ("comm"), as hidden sizes do
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
