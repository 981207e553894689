// Parameters that ranks with different tokens use whole: biases, norm weights, tables of positions.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/nn/parameter.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {

/// A parameter that ranks with different tokens use whole.
///
/// Layout:        the features (dimension `features`; -1 = none) are split like the features of activations in `split`.
///                Dimension 0 is stored in shards over layout.vector_shards. Along other axes that split tokens, ranks
///                hold copies, whose gradients are partial sums over them (gradient_axes).
/// Communication: value(): all_gather over the shards, (q-1)/q of the gathered size, and a
///                reduce_scatter of the same size in backward. Copies: once a step, by the gradient reducer.
class Table {
 public:
  struct Options {
    int64_t features = 0;
    std::vector<tensor::Segment> segments{};  ///< segments of dimension `features`
    nn::Init init = nn::Init::zeros();
    bool decay = false;
  };
  Table(nn::Parameters& parameters, const Layout& layout, const std::string& name, std::vector<int64_t> shape,
        const Split& split, const Options& options);
  at::Tensor value() const;
  nn::Parameter& parameter() const { return parameter_; }

 private:
  comm::Group& shards_;
  nn::Parameter& parameter_;
  int64_t room_;
};

}  // namespace colossal::parallel
