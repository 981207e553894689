#include "colossal/parallel/tensor/vocabulary_1d.h"

#include <ATen/ATen.h>

#include "colossal/comm/collectives.h"
#include "colossal/ops/cross_entropy.h"
#include "colossal/ops/matmul.h"

namespace colossal::parallel {
namespace {

/// The words that a rank's rows are: rows behind `valid` are padding.
ops::VocabularyRange local_range(const nn::Parameter& table, const comm::Group& group) {
  const int64_t room = table.value.size(0), first = std::min<int64_t>(group.rank() * room, table.spec.shape[0]);
  return {first, std::min<int64_t>(room, table.spec.shape[0] - first)};
}

struct GroupReduction : ops::VocabularyReduction {
  explicit GroupReduction(comm::Group& group) : group(group) {}
  void max(at::Tensor& x) override { group.all_reduce(x, comm::Reduce::Max).wait(); }
  void sum(at::Tensor& x) override { group.all_reduce(x, comm::Reduce::Sum).wait(); }
  comm::Group& group;
};

}  // namespace

VocabularyEmbedding1D::VocabularyEmbedding1D(nn::Parameters& parameters, comm::Group& group, const std::string& name,
                                             int64_t vocabulary, int64_t hidden, double deviation)
    : group_(group),
      table_(parameters.add(name + ".weight", tensor::ShardSpec::split({vocabulary, hidden}, 0, {"tensor"}),
                            nn::Init::normal(deviation), true)) {}

at::Tensor VocabularyEmbedding1D::forward(const at::Tensor& ids) {
  const auto [first, valid] = local_range(table_, group_);
  const at::Tensor local = ids - first;
  const at::Tensor elsewhere = (local < 0).logical_or_(local >= valid);
  const at::Tensor rows = at::embedding(table_.value, local.masked_fill(elsewhere, 0));
  return comm::reduce_from(rows.masked_fill(elsewhere.unsqueeze(-1), 0), group_);
}

at::Tensor VocabularyLossHead1D::loss_sum(const at::Tensor& hidden, const at::Tensor& labels) {
  GroupReduction reduction(group_);
  const at::Tensor tokens = comm::copy_to(hidden, group_).reshape({-1, hidden.size(-1)});
  return ops::linear_cross_entropy(tokens, weight_.value, labels.reshape({-1}), local_range(weight_, group_), &reduction);
}

at::Tensor VocabularyLossHead1D::logits(const at::Tensor& hidden) {
  const at::Tensor local = ops::linear(comm::copy_to(hidden, group_), weight_.value, {});
  return comm::gather_from(local, -1, group_).narrow(-1, 0, weight_.spec.shape[0]);
}

}  // namespace colossal::parallel
