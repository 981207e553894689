#include "colossal/parallel/expert/ranks.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/comm/collectives.h"
#include "colossal/comm/compressed_collectives.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::parallel {
namespace {

int64_t padded_size(int64_t rows, int64_t ranks) { return (rows + ranks - 1) / ranks * ranks; }

at::Tensor padded_rows(const at::Tensor& x, int64_t rows) {
  if (x.size(0) == rows) return x;
  return at::cat({x, at::zeros({rows - x.size(0), x.size(1)}, x.options())});
}

/// Returns the run of `rows` that each rank has. The first runs are as long as possible.
std::vector<nn::Range> row_ranges_of(int64_t rows, const comm::Group& ranks) {
  const int64_t each = padded_size(rows, ranks.size()) / ranks.size();
  std::vector<nn::Range> runs;
  for (int64_t r = 0; r < ranks.size(); ++r) {
    const int64_t first = std::min(rows, r * each);
    runs.push_back({first, std::min(rows, first + each) - first});
  }
  return runs;
}

/// Returns the number of rows of each rank's run.
std::vector<int64_t> run_sizes(int64_t rows, const comm::Group& ranks) {
  std::vector<int64_t> sizes;
  for (const nn::Range& run : row_ranges_of(rows, ranks)) sizes.push_back(run.size);
  return sizes;
}

/// Returns this rank's run of x, which is the same on all ranks.
at::Tensor own_run(const at::Tensor& x, comm::Group& ranks) {
  if (ranks.size() == 1) return x;
  const int64_t rows = x.size(0);
  const at::Tensor own = comm::split_to(padded_rows(x, padded_size(rows, ranks.size())), 0, ranks);
  return own.narrow(0, 0, row_ranges_of(rows, ranks)[ranks.rank()].size);
}

/// Returns all `rows` rows from the runs of own_run().
at::Tensor all_runs(const at::Tensor& own, int64_t rows, comm::Group& ranks) {
  if (ranks.size() == 1) return own;
  const int64_t padded = padded_size(rows, ranks.size());
  return comm::gather_from(padded_rows(own, padded / ranks.size()), 0, ranks).narrow(0, 0, rows);
}

/// [T, H / n] of all T tokens -> [t, H] of this rank's run.
at::Tensor whole_features(const at::Tensor& x, comm::Group& columns) {
  if (columns.size() == 1) return x;
  const std::vector<int64_t> sizes = run_sizes(x.size(0), columns);
  const int64_t own = sizes[columns.rank()], n = columns.size();
  const at::Tensor parts = comm::all_to_all(x, std::vector<int64_t>(n, own), sizes, columns);
  return parts.view({n, own, x.size(1)}).permute({1, 0, 2}).reshape({own, n * x.size(1)});
}

/// [t, H] of this rank's run -> [T, H / n] of all `rows` tokens.
at::Tensor split_features(const at::Tensor& y, int64_t rows, comm::Group& columns) {
  if (columns.size() == 1) return y;
  const std::vector<int64_t> sizes = run_sizes(rows, columns);
  const int64_t own = sizes[columns.rank()], n = columns.size(), width = y.size(1) / n;
  const at::Tensor parts = y.view({own, n, width}).permute({1, 0, 2}).reshape({n * own, width});
  return comm::all_to_all(parts, sizes, std::vector<int64_t>(n, own), columns);
}

using Arrival = nn::ExpertRanks::Arrival;
using RowCounts = std::vector<int64_t>;

int64_t sum_of(const RowCounts& rows, int first, int last) {
  return std::accumulate(rows.begin() + first, rows.begin() + last, int64_t{0});
}

/// Starts an all_to_all of whole rows.
Arrival begin_all_to_all(const at::Tensor& x, const RowCounts& out_rows, const RowCounts& in_rows, comm::Group& group) {
  const tensor::ReadScope read({x});
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.at(0) = sum_of(out_rows, 0, group.size());
  at::Tensor out = at::empty(sizes, x.options());
  const at::Tensor in = x.contiguous();
  // The arrival keeps `in`, which other ranks may still read.
  return [in, out, work = group.all_to_all(out, in, out_rows, in_rows)]() mutable {
    work.wait();
    return out;
  };
}

/// Starts an all_to_all of compressed rows. Rows that this rank keeps are not compressed.
Arrival begin_compressed(const at::Tensor& x, RowCounts out_rows, RowCounts in_rows, comm::Group& group) {
  const int rank = group.rank(), after = rank + 1, n = group.size();
  const int64_t first = sum_of(in_rows, 0, rank), kept = in_rows[rank], rest = sum_of(in_rows, after, n);
  const at::Tensor leaving = at::cat({x.narrow(0, 0, first), x.narrow(0, first + kept, rest)});
  const comm::Compression format = row_compression(x.size(1));
  in_rows[rank] = out_rows[rank] = 0;
  const int64_t before = sum_of(out_rows, 0, rank), behind = sum_of(out_rows, after, n);
  return [own = x.narrow(0, first, kept), format, before, behind,
          arrival = begin_all_to_all(comm::compressed_rows(leaving, format), out_rows, in_rows, group)] {
    const at::Tensor others = comm::restored_rows(arrival(), own.size(1), format, own.scalar_type());
    return at::cat({others.narrow(0, 0, before), own, others.narrow(0, before, behind)});
  };
}

}  // namespace

comm::Compression row_compression(int64_t hidden) {
  constexpr int64_t kBlock = 128;
  return {comm::Compression::Format::E4m3, std::min(kBlock, hidden)};
}

MeshExpertRanks::MeshExpertRanks(std::shared_ptr<const Layout> layout) : layout_(std::move(layout)) {
  comm::Mesh& mesh = *layout_->mesh;
  const std::string kExpert = "expert";
  std::vector<std::string> routing = mesh.coordinates().batch_axes();
  for (const auto& axis : mesh.coordinates().axes())
    if (axis.batch_split == tensor::BatchSplit::Nothing && axis.name != "pipeline" && axis.name != kExpert)
      tensor_axes_.push_back(axis.name);
  const bool splits = layout_->splits_experts;
  require(!splits || layout_->outside.columns.empty(), "experts",
          "parallel.expert.tensor must be \"deal\" where ranks split the features of hidden states (2d, 2.5d, 3d): got "
          "\"split\"");
  if (mesh.size(kExpert) > 1) expert_axes_.push_back(kExpert);
  if (splits)
    feature_axes_ = tensor_axes_;
  else
    expert_axes_.insert(expert_axes_.end(), tensor_axes_.begin(), tensor_axes_.end());
  std::vector<std::string> same = splits ? std::vector<std::string>() : layout_->copies;
  if (layout_->has_expert_copies && mesh.size(kExpert) > 1) same.insert(same.begin(), kExpert);
  for (const std::string& axis : layout_->outside.sequence)
    gathers_ = gathers_ || (splits && mesh.size(axis) > 1 &&
                            std::find(tensor_axes_.begin(), tensor_axes_.end(), axis) != tensor_axes_.end());
  if (!splits) routing.insert(routing.end(), tensor_axes_.begin(), tensor_axes_.end());
  experts_ = &mesh.group(expert_axes_);
  features_ = &mesh.group(feature_axes_);
  columns_ = &mesh.group(layout_->outside.columns);
  same_ = &mesh.group(same);
  others_ = &mesh.group(routing);
  const int64_t node = layout_->expert_node;
  if (node == 0) return;
  require(node > 1 && ranks() % node == 0, "experts",
          "a node must have at least 2 ranks and divide those with other "
          "experts: got ",
          node, " of ", ranks(), "; change parallel.expert.node");
  node_ = &mesh.neighbours(expert_axes_, static_cast<int>(node));
  nodes_ = &mesh.counterparts(expert_axes_, static_cast<int>(node));
}

at::Tensor MeshExpertRanks::enter(const at::Tensor& x) const {
  const at::Tensor tokens = x.flatten(0, 1);
  if (gathers_) return own_run(comm::all_gather(tokens, 0, *features_), *same_);
  if (layout_->splits_experts) return own_run(comm::copy_to(tokens, *features_), *same_);
  return own_run(whole_features(tokens, *columns_), *same_);
}

at::Tensor MeshExpertRanks::leave(const at::Tensor& y, const at::Tensor& like) const {
  int64_t rows = like.size(0) * like.size(1);
  at::Tensor result;
  if (layout_->splits_experts) {
    if (gathers_) rows *= features_->size();
    const at::Tensor all = all_runs(y, rows, *same_);
    result = gathers_ ? comm::reduce_scatter(all, 0, *features_) : comm::reduce_from(all, *features_);
  } else {
    const int64_t of_columns = columns_->size() == 1 ? rows : run_sizes(rows, *columns_)[columns_->rank()];
    result = split_features(all_runs(y, of_columns, *same_), rows, *columns_);
  }
  return result.view_as(like);
}

at::Tensor MeshExpertRanks::positions(const at::Tensor& x, const nn::ForwardContext& step, int64_t& tokens) const {
  nn::Tokens own = tokens_of(*layout_, layout_->outside, step);
  own.sequence.given.clear();
  const int64_t rows = own.batch.whole_size(x.size(0)), columns = own.sequence.whole_size(x.size(1)),
                replicas = layout_->mesh->coordinates().size(layout_->mesh->coordinates().row_axes()),
                replica = layout_->mesh->coordinates().index(layout_->mesh->coordinates().row_axes());
  tokens = replicas * rows * columns;
  const at::Tensor all =
      at::arange(replica * rows * columns, (replica + 1) * rows * columns, x.options().dtype(at::kLong));
  at::Tensor here = own.of(all.view({rows, columns})).reshape({-1});
  const auto run = [](const at::Tensor& of, const comm::Group& ranks) {
    const nn::Range range = row_ranges_of(of.size(0), ranks)[ranks.rank()];
    return of.narrow(0, range.first, range.size);
  };
  if (gathers_) here = comm::all_gather(here, 0, *features_);
  return run(run(here, *columns_), *same_).contiguous();
}

Arrival MeshExpertRanks::begin_exchange(const at::Tensor& rows, const std::vector<int64_t>& out_rows,
                                        const std::vector<int64_t>& in_rows, Among among, bool may_round) const {
  const at::NoGradGuard no_grad;
  comm::Group& group = among == Among::All ? *experts_ : among == Among::SameNode ? *node_ : *nodes_;
  if (group.size() == 1) return [rows] { return rows; };
  const bool compresses = may_round && layout_->compresses_tokens;
  return compresses ? begin_compressed(rows, out_rows, in_rows, group)
                    : begin_all_to_all(rows, out_rows, in_rows, group);
}

at::Tensor MeshExpertRanks::sum(at::Tensor x) const {
  if (others_->size() > 1) others_->all_reduce(x, comm::Reduce::Sum).wait();
  return x;
}

}  // namespace colossal::parallel
