// A pair of blocks, over places and then over frames, as a model with two axes has it.
//
//   const PairOfAxes pair(layers, "blocks.0", shape);
//   y = pair.forward(x, {.rows = 2, .places = 7}, step);   // x [frames of 2 rows, own places of 7, H]
#pragma once
#include <ATen/ATen.h>

#include <memory>
#include <string>

#include "colossal/nn/attention_shape.h"
#include "colossal/nn/axis_switch.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"

namespace colossal::test {

class PairOfAxes {
 public:
  struct Sizes {
    int64_t rows, places;    ///< rows of this rank, and places over all ranks
    bool comes_back = true;  ///< false = the fault that the second switch is missing
  };

  PairOfAxes(nn::Layers& make, const std::string& name, const nn::AttentionShape& shape)
      : axes_(make.axis_switch()),
        over_places_(make, name + ".places", shape, make.attention(name + ".places", shape, {.causal = false})),
        over_frames_(make, name + ".frames", shape, nn::axis_attention(shape, {.causal = false})) {}

  at::Tensor forward(const at::Tensor& x, const Sizes& s, const nn::ForwardContext& step) const {
    const nn::Axis frames{0, x.size(0), "frames"}, places{1, s.places, "places"};
    at::Tensor y = over_places_.forward(axes_->forward(x, places, frames), step);
    if (s.comes_back) y = axes_->forward(y, frames, places);
    const at::Tensor h = turned(x + y, s.rows);  // [own places of the rows, frames, H]
    return turned(h + over_frames_.forward(h, step), s.rows);
  }

 private:
  struct Branch {
    Branch(nn::Layers& make, const std::string& name, const nn::AttentionShape& shape,
           std::unique_ptr<nn::Attention> attention)
        : qkv(make.heads(name + ".qkv", shape, {.deviation = 0.5})),
          attention(std::move(attention)),
          out(make.from_heads(name + ".out", shape, {.deviation = 0.5})) {}
    at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
      return out->forward(attention->forward(qkv->forward(x, step), step), step);
    }
    std::unique_ptr<nn::HeadProjection> qkv;
    std::unique_ptr<nn::Attention> attention;
    std::unique_ptr<nn::OutputProjection> out;
  };

  /// Exchanges both axes within the rows: [rows A, B, H] -> [rows B, A, H].
  static at::Tensor turned(const at::Tensor& x, int64_t rows) {
    return x.unflatten(0, {rows, -1}).transpose(1, 2).flatten(0, 1);
  }

  std::shared_ptr<const nn::AxisSwitch> axes_;
  Branch over_places_, over_frames_;
};

}  // namespace colossal::test
