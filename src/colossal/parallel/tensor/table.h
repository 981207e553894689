// Parameters that ranks with other tokens use whole: biases, norm weights, tables of positions.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/nn/parameter.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {

/// Layout:        the features (dimension `features`; -1: none) are cut like those of activations in `split`; dimension
///                0 is kept in pieces over layout.vector_shards; along other axes that cut tokens ranks hold copies,
///                whose gradients are partial sums over them (gradient_axes).
/// Communication: value(): all_gather over the shards, (q-1)/q of the gathered size, and a reduce_scatter of as much in
///                backward. Copies: once a step, by the gradient reducer.
class Table {
 public:
  struct Options {
    int64_t features = 0;
    std::vector<tensor::Segment> segments{};  ///< of that dimension
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
