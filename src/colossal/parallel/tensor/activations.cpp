#include "colossal/parallel/tensor/activations.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::parallel {
namespace {

using AxisNames = std::vector<std::string>;

bool is_named(const AxisNames& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

nn::Tokens tokens_at(const tensor::Place& place, const Split& split) {
  return {{place.size(split.batch), {place.index(split.batch)}},
          {place.size(split.sequence), {place.index(split.sequence)}}};
}

/// The places of the ranks that differ from `place` only along `axes`, the first axis outermost.
std::vector<tensor::Place> places_along(const tensor::Place& place, const AxisNames& axes) {
  std::vector<tensor::Place> places{place};
  for (const std::string& name : axes) {
    std::vector<tensor::Place> longer;
    for (const tensor::Place& from : places)
      for (int i = 0; i < place.size(name); ++i) {
        std::vector<tensor::Place::Axis> moved = from.axes();
        for (auto& axis : moved)
          if (axis.name == name) axis.index = i;
        longer.emplace_back(std::move(moved));
      }
    places = std::move(longer);
  }
  return places;
}

}  // namespace

nn::Tokens tokens_of(const Layout& layout, const Split& split) { return tokens_at(layout.mesh->place(), split); }

std::vector<int64_t> local_sizes(const Layout& layout, const Split& split, int64_t batch, int64_t sequence,
                                 int64_t features) {
  const tensor::Place& place = layout.mesh->place();
  return {batch / place.size(split.batch), sequence / place.size(split.sequence), features / place.size(split.columns)};
}

at::Tensor part_of(const Layout& layout, const Split& split, const at::Tensor& whole) {
  const tensor::Place& place = layout.mesh->place();
  const int64_t parts = place.size(split.columns), width = whole.size(2) / parts;
  require(whole.size(2) % parts == 0, "parallel", "the features must divide by the ", parts,
          " ranks that split them: got ", whole.size(2));
  return tokens_at(place, split).of(whole).narrow(2, place.index(split.columns) * width, width);
}

GatheredTokens::GatheredTokens(const Layout& layout, const Split& split, const AxisNames& axes) {
  const auto cuts = std::count_if(axes.begin(), axes.end(), [&](const std::string& axis) {
    return is_named(split.batch, axis) || is_named(split.sequence, axis);
  });
  require(cuts == 0 || cuts == static_cast<int64_t>(axes.size()), "parallel",
          "ranks that are gathered together must hold different tokens along all of their axes, or along none");
  for (const tensor::Place& place : places_along(layout.mesh->place(), cuts == 0 ? AxisNames() : axes))
    ranks_.push_back(tokens_at(place, split));
}

at::Tensor GatheredTokens::of(const at::Tensor& whole) const {
  if (!differ()) return ranks_.front().of(whole);
  std::vector<at::Tensor> parts;
  for (const nn::Tokens& tokens : ranks_) parts.push_back(tokens.of(whole));
  return at::cat(parts);
}

SequenceOrder::SequenceOrder(const Layout& layout) : ranks_(1) {
  for (const std::string& axis : layout.outside.sequence)
    if (!is_named(layout.inside.sequence, axis)) ranks_ *= layout.mesh->size(axis);
}

at::Tensor SequenceOrder::by_sequence(const at::Tensor& by_rank) const {
  if (ranks_ == 1) return by_rank;
  require(by_rank.dim() >= 2, "parallel", "gathered tokens must be [ranks * B, S / ranks, ...]: got ", by_rank.sizes());
  return by_rank.unflatten(0, {ranks_, -1}).transpose(0, 1).flatten(1, 2);
}

at::Tensor SequenceOrder::by_rank(const at::Tensor& by_sequence) const {
  if (ranks_ == 1) return by_sequence;
  return by_sequence.unflatten(1, {ranks_, -1}).transpose(0, 1).flatten(0, 1);
}

}  // namespace colossal::parallel
