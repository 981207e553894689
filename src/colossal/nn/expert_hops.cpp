#include "colossal/nn/expert_hops.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::nn {
namespace {

using Among = ExpertRanks::Among;
using Counts = std::vector<int64_t>;

int64_t total(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

at::Tensor index_on(const Counts& values, const at::TensorOptions& index) {
  return index.device().is_meta() ? at::empty({static_cast<int64_t>(values.size())}, index)
                                  : at::tensor(values, at::kLong).to(index.device());
}

/// Returns the values of an int64 tensor; waits for its device.
Counts values_of(const at::Tensor& x) {
  const at::Tensor on_host = x.cpu().contiguous();
  const int64_t* first = on_host.const_data_ptr<int64_t>();
  return {first, first + on_host.numel()};
}

Counts inverse(const Counts& permutation) {
  Counts opposite(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) opposite[permutation[i]] = static_cast<int64_t>(i);
  return opposite;
}

/// A variable of the thread and not an argument, as of tensor::MeantDevice: layers of all kinds lie between.
double& meant_load() {
  thread_local double load = 1;
  return load;
}

}  // namespace

std::vector<int64_t> even_counts(int64_t assignments, int64_t count) {
  Counts counts;
  for (int64_t e = 0; e < count; ++e) counts.push_back(assignments * (e + 1) / count - assignments * e / count);
  return counts;
}

at::Tensor picked_rows(const at::Tensor& x, const at::Tensor& index) {
  return x.is_meta() ? at::empty({index.size(0), x.size(1)}, x.options()) : x.index_select(0, index);
}

ExpertHop::ExpertHop(const Counts& counts, int64_t here, std::shared_ptr<const ExpertRanks> ranks, Among among,
                     const at::TensorOptions& index)
    : ExpertHop(index_on(counts, index), counts, here, std::move(ranks), among) {}

ExpertHop::ExpertHop(const at::Tensor& counts, const Counts& on_meta, int64_t here,
                     std::shared_ptr<const ExpertRanks> ranks, Among among)
    : ranks_(std::move(ranks)), among_(among), size_(counts.size(0) / here) {
  const Counts each(static_cast<size_t>(size_), here);
  const at::Tensor theirs = size_ == 1 ? counts : ranks_->exchange(counts, each, each, among_);  // [size x here]
  Counts leaving, arriving;
  if (counts.is_meta()) {
    leaving = on_meta;
    const int64_t rank = size_ == 1 ? 0 : among_ == Among::SameNode ? ranks_->rank() % size_ : ranks_->rank();
    for (int64_t r = 0; r < size_; ++r)
      arriving.insert(arriving.end(), on_meta.begin() + rank * here, on_meta.begin() + (rank + 1) * here);
  } else {
    const Counts both = values_of(at::cat({counts, theirs}));
    const auto half = both.begin() + size_ * here;
    leaving.assign(both.begin(), half);
    arriving.assign(half, both.end());
  }
  for (int64_t r = 0; r < size_; ++r) {
    const auto sum = [&](const Counts& of) {
      return std::accumulate(of.begin() + r * here, of.begin() + (r + 1) * here, int64_t{0});
    };
    sent_.push_back(sum(leaving));
    received_.push_back(sum(arriving));
  }
  int64_t end = 0;
  for (int64_t e = 0; e < here; ++e) {
    for (int64_t r = 0; r < size_; ++r) end += arriving[r * here + e];
    ends_.push_back(end);
  }
  if (size_ > 1) order_rows(theirs, here);
}

/// Rows arrive source by source, and within a source expert by expert. A run of rows with one source and one expert
/// has the same distance between both orders, so the order is computed on the device of the counts without a wait.
void ExpertHop::order_rows(const at::Tensor& arriving, int64_t here) {
  const int64_t rows = ends_.back();
  if (arriving.is_meta()) {
    by_expert_ = by_source_ = at::empty({rows}, arriving.options());
    return;
  }
  const auto firsts = [](const at::Tensor& counts) { return counts.cumsum(0) - counts; };
  const at::Tensor of_expert = arriving.view({size_, here}).t().reshape({-1});  // [here x size]
  const at::Tensor in_arrival = firsts(arriving).view({size_, here}),
                   in_experts = firsts(of_expert).view({here, size_}).t(), distance = in_arrival - in_experts;
  const at::Tensor places = at::arange(rows, arriving.options());
  // The distance of each row, of runs of those lengths. at::repeat_interleave may wait for the device.
  const auto of_rows = [&](const at::Tensor& of_runs, const at::Tensor& lengths) {
    const at::Tensor run = at::searchsorted(lengths.cumsum(0), places, /*out_int32=*/false, /*right=*/true);
    return of_runs.reshape({-1}).index_select(0, run);
  };
  by_expert_ = places + of_rows(distance.t(), of_expert);
  by_source_ = places - of_rows(distance, arriving);
}

int64_t ExpertHop::rows_sent() const { return total(sent_); }

ExpertRanks::Arrival ExpertHop::begin(const at::Tensor& rows, bool may_round) const {
  if (size_ == 1) return [rows] { return rows; };
  const ExpertRanks::Arrival arrival = ranks_->begin_exchange(rows, received_, sent_, among_, may_round);
  return [arrival, by_expert = by_expert_] { return picked_rows(arrival(), by_expert); };
}

at::Tensor ExpertHop::back(const at::Tensor& rows) const {
  return size_ == 1 ? rows : ranks_->exchange(picked_rows(rows, by_source_), sent_, received_, among_);
}

/// The rows and assignments that this rank sends to other nodes. All lists are sorted by node, then by token.
struct NodeHop::Codes {
  Counts codes;   // of each assignment: 2 x (its expert's index in the node), plus 1 if it is the first one of its row
  Counts tokens;  // token of each row
  Counts order;   // place of each assignment in the order of experts
};

NodeHop::NodeHop(const at::Tensor& experts, const at::Tensor& place, int64_t assignments, int64_t count, int64_t here,
                 std::shared_ptr<const ExpertRanks> ranks)
    : ranks_(std::move(ranks)), nodes_(ranks_->ranks() / ranks_->node()) {
  const int64_t of_node = ranks_->node() * here;
  const bool is_meta = experts.is_meta();
  const at::TensorOptions index = experts.options().dtype(at::kLong);
  Codes own;
  if (is_meta)
    even(experts.size(0), experts.size(1), count, of_node);
  else
    own = codes_of(experts, place, assignments, of_node);
  own.tokens.resize(static_cast<size_t>(total(rows_sent_)));
  own.order.resize(static_cast<size_t>(total(assigned_sent_)));
  own.codes.resize(own.order.size());
  token_of_ = index_on(own.tokens, index);
  by_node_ = index_on(own.order, index);
  by_order_ = is_meta ? by_node_ : index_on(inverse(own.order), index);
  exchange_counts(is_meta, index);
  const at::Tensor codes =
      ranks_->exchange(index_on(own.codes, index), assigned_received_, assigned_sent_, Among::Nodes);
  if (is_meta)
    row_of_ = to_pass_ = to_return_ = codes;
  else
    read(values_of(codes), of_node, index);
}

NodeHop::Codes NodeHop::codes_of(const at::Tensor& experts, const at::Tensor& place, int64_t assignments,
                                 int64_t of_node) {
  const Counts expert = values_of(experts), at = values_of(place);
  const int64_t used = experts.size(1), tokens = experts.size(0);
  std::vector<Codes> to(static_cast<size_t>(nodes_));
  for (int64_t t = 0; t < tokens; ++t) {
    int64_t last = -1;  // node of the token's last assignment; its experts are ascending, so its nodes are, too
    for (int64_t i = t * used; i < (t + 1) * used; ++i) {
      if (at[i] == assignments) continue;  // dropped
      const int64_t node = expert[i] / of_node;
      Codes& there = to[node];
      if (node != last) there.tokens.push_back(t);
      there.codes.push_back(2 * (expert[i] - node * of_node) + (node != last ? 1 : 0));
      there.order.push_back(at[i]);
      last = node;
    }
  }
  Codes all;
  for (const Codes& there : to) {
    rows_sent_.push_back(static_cast<int64_t>(there.tokens.size()));
    assigned_sent_.push_back(static_cast<int64_t>(there.codes.size()));
    all.codes.insert(all.codes.end(), there.codes.begin(), there.codes.end());
    all.tokens.insert(all.tokens.end(), there.tokens.begin(), there.tokens.end());
    all.order.insert(all.order.end(), there.order.begin(), there.order.end());
  }
  return all;
}

void NodeHop::even(int64_t tokens, int64_t used, int64_t count, int64_t of_node) {
  Counts loads = meant_counts(tokens * used, tokens, count, *ranks_);
  loads.resize(static_cast<size_t>(nodes_ * of_node), 0);
  for (int64_t n = 0; n < nodes_; ++n) {
    const auto first = loads.begin() + n * of_node;
    assigned_sent_.push_back(std::accumulate(first, first + of_node, int64_t{0}));
    rows_sent_.push_back(std::min(tokens, assigned_sent_.back()));
  }
  const auto own = loads.begin() + ranks_->rank() / ranks_->node() * of_node;
  for (int64_t e = 0; e < of_node; ++e) counts_.push_back(nodes_ * own[e]);
}

void NodeHop::exchange_counts(bool is_meta, const at::TensorOptions& index) {
  Counts own;
  for (int64_t n = 0; n < nodes_; ++n) own.insert(own.end(), {rows_sent_[n], assigned_sent_[n]});
  const Counts each(static_cast<size_t>(nodes_), 2);
  const at::Tensor received = ranks_->exchange(index_on(own, index), each, each, Among::Nodes);
  const int64_t node = ranks_->rank() / ranks_->node();
  const Counts theirs = is_meta ? Counts() : values_of(received);
  for (int64_t n = 0; n < nodes_; ++n) {
    rows_received_.push_back(is_meta ? rows_sent_[node] : theirs[2 * n]);
    assigned_received_.push_back(is_meta ? assigned_sent_[node] : theirs[2 * n + 1]);
  }
}

void NodeHop::read(const Counts& codes, int64_t of_node, const at::TensorOptions& index) {
  counts_.assign(static_cast<size_t>(of_node), 0);
  const int64_t rows = total(rows_received_);
  int64_t row = -1;
  Counts row_of;
  for (const int64_t code : codes) {
    row += code % 2;
    require(code >= 0 && code / 2 < of_node && row >= 0 && row < rows, "experts",
            "assignments must name the experts of this node and the received rows: got code ", code, " for row ", row,
            " of ", rows, "; all ranks must run the same pass");
    row_of.push_back(row);
    ++counts_[code / 2];
  }
  Counts order(codes.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return codes[a] / 2 < codes[b] / 2; });
  Counts passed;
  for (const int64_t i : order) passed.push_back(row_of[i]);
  row_of_ = index_on(passed, index);
  to_pass_ = index_on(order, index);
  to_return_ = index_on(inverse(order), index);
}

ExpertRanks::Arrival NodeHop::begin(const at::Tensor& x, bool may_round) const {
  const ExpertRanks::Arrival arrival =
      ranks_->begin_exchange(picked_rows(x, token_of_), rows_received_, rows_sent_, Among::Nodes, may_round);
  return [arrival, row_of = row_of_] { return picked_rows(arrival(), row_of); };
}

at::Tensor NodeHop::forth(const at::Tensor& rows) const {
  const at::Tensor there =
      ranks_->exchange(picked_rows(rows, by_node_), assigned_received_, assigned_sent_, Among::Nodes);
  return picked_rows(there, to_pass_);
}

at::Tensor NodeHop::back(const at::Tensor& rows) const {
  const at::Tensor here =
      ranks_->exchange(picked_rows(rows, to_return_), assigned_sent_, assigned_received_, Among::Nodes);
  return picked_rows(here, by_order_);
}

MeantLoad::MeantLoad(double load) : before_(std::exchange(meant_load(), load)) {}
MeantLoad::~MeantLoad() { meant_load() = before_; }

std::vector<int64_t> meant_counts(int64_t assignments, int64_t tokens, int64_t count, const ExpertRanks& ranks) {
  const int64_t here = (count + ranks.ranks() - 1) / ranks.ranks(), first = std::min(count, ranks.rank() * here),
                own = std::min(count, first + here) - first;
  if (meant_load() == 1 || ranks.ranks() == 1 || own == 0) return even_counts(assignments, count);
  const double mean = static_cast<double>(assignments) / static_cast<double>(ranks.ranks());
  int64_t left = std::min({assignments, own * tokens, static_cast<int64_t>(std::ceil(meant_load() * mean))});
  std::vector<int64_t> counts = even_counts(assignments - left, count - own);
  std::vector<int64_t> of_rank;
  for (int64_t e = 0; e < own; ++e) {
    of_rank.push_back(std::min(left, tokens));
    left -= of_rank.back();
  }
  counts.insert(counts.begin() + first, of_rank.begin(), of_rank.end());
  return counts;
}

}  // namespace colossal::nn
