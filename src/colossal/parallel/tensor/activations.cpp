#include "colossal/parallel/tensor/activations.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "colossal/base/error.h"
#include "colossal/comm/collectives.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/tokens.h"

namespace colossal::parallel {
namespace {

using AxisNames = std::vector<std::string>;

bool is_named(const AxisNames& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

nn::Tokens tokens_at(const tensor::MeshCoordinates& coordinates, const Layout& layout, const Split& split,
                     const nn::ForwardContext& step) {
  nn::Tokens tokens{.batch = {coordinates.size(split.batch), {coordinates.index(split.batch)}},
                    .sequence = {coordinates.size(split.sequence), {coordinates.index(split.sequence)}}};
  if (!step.cut) return tokens;
  const int64_t planned = static_cast<int64_t>(step.cut->held.size()),
                ranks = coordinates.size(layout.outside.sequence);
  require(planned == ranks, "parallel", "the cut of a step must be for the ", ranks,
          " ranks that split the sequence: got one for ", planned, "; Layout::with_cut() makes it");
  tokens.sequence = step.cut->share(coordinates.index(split.sequence), coordinates.size(split.sequence));
  return tokens;
}

void check_equal(int64_t tokens, int64_t others) {
  require(tokens == others, "parallel", "ranks whose tokens are gathered must hold the same number of tokens: got ",
          tokens, " and ", others, "; split the sequence so that their runs have the same total");
}

/// Returns the coordinates of the ranks that differ from `coordinates` only along `axes`, the first axis outermost.
std::vector<tensor::MeshCoordinates> coordinates_along(const tensor::MeshCoordinates& coordinates,
                                                       const AxisNames& axes) {
  std::vector<tensor::MeshCoordinates> found{coordinates};
  for (const std::string& name : axes) {
    std::vector<tensor::MeshCoordinates> longer;
    for (const tensor::MeshCoordinates& from : found)
      for (int i = 0; i < coordinates.size(name); ++i) {
        std::vector<tensor::MeshCoordinates::Axis> moved = from.axes();
        for (auto& axis : moved)
          if (axis.name == name) axis.index = i;
        longer.emplace_back(std::move(moved));
      }
    found = std::move(longer);
  }
  return found;
}

/// Returns this rank's share of a dimension of kind Token that is not as long as the batch: residues beside tokens, the
/// rows of a picture.
nn::Share share_of_axis(const tensor::MeshCoordinates& coordinates, const Split& split, int64_t size) {
  return nn::near_even_share(size, coordinates.size(split.sequence), coordinates.index(split.sequence));
}

}  // namespace

nn::Tokens tokens_of(const Layout& layout, const Split& split, const nn::ForwardContext& step) {
  return tokens_at(layout.mesh->coordinates(), layout, split, step);
}

std::vector<int64_t> local_sizes(const Layout& layout, const Split& split, const std::vector<int64_t>& sizes,
                                 const std::vector<tensor::Dim>& dims, int64_t tokens, const nn::ForwardContext& step) {
  const tensor::MeshCoordinates& coordinates = layout.mesh->coordinates();
  const auto evenly = [&](const AxisNames& axes) {
    return nn::Share{coordinates.size(axes), {coordinates.index(axes)}};
  };
  const nn::Tokens own = tokens_of(layout, split, step);
  const auto held = [](const nn::Share& share, int64_t size, const char* what) {
    int64_t sum = 0;
    for (const nn::Range& run : share.ranges(size, what)) sum += run.size;
    return sum;
  };
  std::vector<int64_t> local;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t size = sizes[i];
    switch (dims.at(i)) {
      case tensor::Dim::Row:
        local.push_back(held(own.batch, size, "batch"));
        break;
      case tensor::Dim::Token:
        local.push_back(
            held(size == tokens ? own.sequence : share_of_axis(coordinates, split, size), size, "sequence"));
        break;
      case tensor::Dim::Feature:
        local.push_back(held(evenly(split.columns), size, "features of a state"));
        break;
      case tensor::Dim::Other:
        local.push_back(size);
        break;
    }
  }
  return local;
}

at::Tensor part_of(const Layout& layout, const Split& split, const at::Tensor& whole, const nn::ForwardContext& step) {
  const tensor::MeshCoordinates& coordinates = layout.mesh->coordinates();
  const int64_t parts = coordinates.size(split.columns), width = whole.size(2) / parts;
  require(whole.size(2) % parts == 0, "parallel", "the features must be divisible by the ", parts,
          " ranks that split them: got ", whole.size(2));
  return tokens_of(layout, split, step).of(whole).narrow(2, coordinates.index(split.columns) * width, width);
}

at::Tensor part_of(const Layout& layout, const Split& split, const tensor::Field& field,
                   const nn::ForwardContext& step) {
  require(step.batch != nullptr, "model",
          "a step must have its micro-batch, of which a layer reads a field: got none; nn::step_of() makes it");
  const tensor::MeshCoordinates& coordinates = layout.mesh->coordinates();
  const auto evenly = [&](const AxisNames& axes) {
    return nn::Share{coordinates.size(axes), {coordinates.index(axes)}};
  };
  const nn::Tokens tokens = tokens_of(layout, split, step);
  nn::Share cut = tokens.sequence;
  int64_t length = step.batch->tokens();  // length of the fields that the cut divides
  if (field.stays_whole && step.cut) {
    cut.given.clear();
    length = step.cut->tokens();
  }
  at::Tensor part = field.tensor;
  for (int64_t dim = 0; dim < part.dim(); ++dim) {
    switch (field.dims.at(dim)) {
      case tensor::Dim::Row:
        part = tokens.batch.of(part, dim, "batch");
        break;
      case tensor::Dim::Token: {
        const bool is_cut = part.size(dim) == length;
        part = (is_cut ? cut : share_of_axis(coordinates, split, part.size(dim))).of(part, dim, "tokens of a field");
        break;
      }
      case tensor::Dim::Feature:
        part = evenly(split.columns).of(part, dim, "features of a field");
        break;
      case tensor::Dim::Other:
        break;
    }
  }
  return part;
}

namespace {

/// Returns all tokens of dimension 1: those of `own`, and zeros in place of the runs that other ranks hold. It joins
/// slices, because LibTorch has no C++ version of index_copy's gradient for tensors on meta.
at::Tensor with_zeros(const at::Tensor& own, const nn::Share& tokens) {
  const int64_t whole = tokens.whole_size(own.size(1));
  std::map<int64_t, at::Tensor> runs;  // by their first token
  int64_t next = 0;
  for (const nn::Range& run : tokens.ranges(whole, "sequence")) {
    runs[run.first] = own.narrow(1, next, run.size);
    next += run.size;
  }
  std::vector<at::Tensor> pieces;
  int64_t end = 0;
  const auto fill = [&](int64_t to) {
    if (to == end) return;
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes[1] = to - end;
    pieces.push_back(at::zeros(sizes, own.options()));
  };
  for (const auto& [first, run] : runs) {
    fill(first);
    pieces.push_back(run);
    end = first + run.size(1);
  }
  fill(whole);
  return at::cat(pieces, 1);
}

}  // namespace

at::Tensor joined(const Layout& layout, const Split& split, const at::Tensor& own, const nn::ForwardContext& step) {
  const nn::Share tokens = tokens_of(layout, split, step).sequence;
  at::Tensor rows = own;
  if (!tokens.is_all()) {
    // Each token is on one rank; the others add zeros.
    rows = comm::reduce_from(with_zeros(own, tokens), layout.mesh->group(split.sequence));
  }
  return comm::gather_from(rows, 0, layout.mesh->group(split.batch));
}

GatheredTokens::GatheredTokens(std::shared_ptr<const Layout> layout, const AxisNames& axes)
    : layout_(std::move(layout)) {
  const Split& split = layout_->outside;
  const auto cuts = std::count_if(axes.begin(), axes.end(), [&](const std::string& axis) {
    return is_named(split.batch, axis) || is_named(split.sequence, axis);
  });
  require(cuts == 0 || cuts == static_cast<int64_t>(axes.size()), "parallel",
          "ranks that are gathered together must hold different tokens along all of their axes, or along none");
  ranks_ = coordinates_along(layout_->mesh->coordinates(), cuts == 0 ? AxisNames() : axes);
}

at::Tensor GatheredTokens::of(const at::Tensor& whole, const nn::ForwardContext& step) const {
  const auto tokens = [&](const tensor::MeshCoordinates& rank) {
    return tokens_at(rank, *layout_, layout_->outside, step);
  };
  if (!differ()) return tokens(ranks_.front()).of(whole);
  std::vector<at::Tensor> parts;
  for (const tensor::MeshCoordinates& rank : ranks_) parts.push_back(tokens(rank).of(whole));
  for (const at::Tensor& part : parts) check_equal(parts.front().size(1), part.size(1));
  return at::cat(parts);
}

SequenceOrder SequenceOrder::inside(const Layout& layout) {
  const tensor::MeshCoordinates& coordinates = layout.mesh->coordinates();
  const AxisNames &outside = layout.outside.sequence, &inside = layout.inside.sequence;
  require(inside.size() <= outside.size() && std::equal(inside.begin(), inside.end(), outside.begin()), "parallel",
          "a layout's axes that split the sequence inside must be the outermost of those that split it outside");
  const int64_t parts = coordinates.size(outside), ranks = parts / coordinates.size(inside);
  return {coordinates.index(inside) * ranks, ranks, parts};
}

SequenceOrder SequenceOrder::whole(const Layout& layout, const Split& split) {
  const int64_t parts = layout.mesh->coordinates().size(split.sequence);
  return {0, parts, parts};
}

std::vector<SequenceOrder::Run> SequenceOrder::runs(const nn::SequenceCut& cut) const {
  std::vector<int64_t> rank_of(cut.lengths.size(), -1), taken(ranks_);
  for (int64_t rank = 0; rank < ranks_; ++rank)
    for (const int64_t run : cut.share(first_ + rank, parts_).held) rank_of[run] = rank;
  std::vector<Run> runs;
  int64_t first = 0;
  for (size_t i = 0; i < rank_of.size(); ++i) {
    if (rank_of[i] < 0) continue;
    runs.push_back({rank_of[i], taken[rank_of[i]], first, cut.lengths[i]});
    taken[rank_of[i]] += cut.lengths[i];
    first += cut.lengths[i];
  }
  for (const int64_t tokens : taken) check_equal(taken.front(), tokens);
  return runs;
}

void SequenceOrder::check(const nn::ForwardContext& step) const {
  if (ranks_ == 1 || !step.cut) return;
  for (int64_t first = 0; first < parts_; first += ranks_) SequenceOrder(first, ranks_, parts_).runs(*step.cut);
}

at::Tensor SequenceOrder::by_sequence(const at::Tensor& by_rank, const nn::ForwardContext& step) const {
  if (ranks_ == 1) return by_rank;
  require(by_rank.dim() >= 2, "parallel", "gathered tokens must be [ranks * B, S / ranks, ...]: got ", by_rank.sizes());
  if (!step.cut) return by_rank.unflatten(0, {ranks_, -1}).transpose(0, 1).flatten(1, 2);
  const std::vector<at::Tensor> ranks = by_rank.chunk(ranks_);
  std::vector<at::Tensor> parts;
  for (const Run& run : runs(*step.cut)) parts.push_back(ranks[run.rank].narrow(1, run.own, run.size));
  return at::cat(parts, 1);
}

at::Tensor SequenceOrder::by_rank(const at::Tensor& by_sequence, const nn::ForwardContext& step) const {
  if (ranks_ == 1) return by_sequence;
  if (!step.cut) return by_sequence.unflatten(1, {ranks_, -1}).transpose(0, 1).flatten(0, 1);
  std::vector<std::vector<at::Tensor>> parts(ranks_);
  for (const Run& run : runs(*step.cut)) parts[run.rank].push_back(by_sequence.narrow(1, run.first, run.size));
  std::vector<at::Tensor> ranks;
  for (const auto& own : parts) ranks.push_back(at::cat(own, 1));
  return at::cat(ranks);
}

}  // namespace colossal::parallel
