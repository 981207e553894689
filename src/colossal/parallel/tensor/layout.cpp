#include "colossal/parallel/tensor/layout.h"

#include <algorithm>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/modes.h"

namespace colossal::parallel {
namespace {

/// Returns the layout of one rank, for any mode: nothing is split, nothing is sent.
Layout layout_of_one(comm::Mesh& mesh) {
  const std::shared_ptr<const nn::Product> product(std::shared_ptr<void>(),
                                                   &nn::serial_product());  // does not own it
  return {.mesh = &mesh, .expand = {{}, product}, .contract = {{}, product}};
}

}  // namespace

Layout make_layout(const TensorConfig& config, comm::Mesh& mesh) {
  if (config.size == 1) return layout_of_one(mesh);
  Layout layout = with_mode(config, [&](auto mode) { return mode.layout(mesh, config); });
  const Split& outside = layout.outside;
  for (const comm::Mesh::Axis& axis : tensor_axes(config)) {
    const auto has = [&](const std::vector<std::string>& axes) {
      return std::find(axes.begin(), axes.end(), axis.name) != axes.end();
    };
    if (!has(outside.batch) && !has(outside.sequence) && !has(outside.columns)) layout.copies.push_back(axis.name);
  }
  return layout;
}

nn::ForwardContext Layout::with_cut(nn::ForwardContext step, int64_t tokens) const {
  if (!cut || step.cut) return step;
  step.cut = std::make_shared<const nn::SequenceCut>(cut(tokens, step));
  tokens_of(*this, outside, step).sequence.ranges(tokens, "sequence");
  SequenceOrder::inside(*this).check(step);
  return step;
}

nn::Share Layout::tokens_read(const nn::ForwardContext& step) const { return tokens_of(*this, inside, step).sequence; }

}  // namespace colossal::parallel
