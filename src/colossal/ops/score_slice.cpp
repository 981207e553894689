#include "colossal/ops/score_slice.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/ops/device/tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::ops {
namespace {

/// Below this difference a probability is 0, so its part of an entropy is too; z of -infinity would give 0 * infinity.
constexpr double kLeastDifference = -1000;

/// Columns of the labels among the valid ones [t, 1], and [t] whether they are there.
struct LabelColumns {
  LabelColumns(const at::Tensor& labels, const VocabularyRange& range)
      : counted(labels.ne(kIgnoredLabel)),
        here(counted.bitwise_and(labels.ge(range.first)).bitwise_and(labels.lt(range.first + range.valid))),
        column((labels - range.first).clamp(0, std::max<int64_t>(range.valid, 1) - 1).unsqueeze(1)) {}
  at::Tensor counted, here, column;
};

template <class T>
ScoreRows<T> score_rows_of(const at::Tensor& logits, const at::Tensor& labels, const VocabularyRange& range,
                           double scale) {
  return {.columns = logits.size(1),
          .valid = range.valid,
          .stride = logits.stride(0),
          .logits = pointer<T>(logits),
          .labels = pointer<int64_t>(labels),
          .ignored = kIgnoredLabel,
          .first = range.first,
          .scale = static_cast<T>(scale)};
}

}  // namespace

ScoreSlice::ScoreSlice(at::Tensor logits, const at::Tensor& labels, const VocabularyRange& range, double scale)
    : logits_(std::move(logits)), labels_(labels.contiguous()), range_(range), scale_(scale) {
  require(labels.device() == logits_.device(), "token_scores", "labels must be on the device of the logits, ",
          logits_.device(), ": got ", labels.device());
}

bool ScoreSlice::has_kernels() const { return tensor::is_for_cpu(logits_) || has_device_kernels(logits_); }

/// Calls step(table, rows, from, to) on the CPU, by a range of rows per thread, or on a device step(table, rows, number
/// of rows, stream).
template <class Run>
void ScoreSlice::run(Run&& step) const {
  const bool on_device = with_device_kernels(logits_, [&](auto element, const auto& table, void* stream) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, WideOf<T>>)
      step(table, score_rows_of<T>(logits_, labels_, range_, scale_), logits_.size(0), stream);
  });
  if (on_device || logits_.is_meta()) return;
  const auto on_cpu = [&](const auto& table, const auto& all) {
    const int64_t grain = std::max<int64_t>(16384 / std::max<int64_t>(all.columns, 1), 1);
    parallel_for(0, logits_.size(0), grain, [&](int64_t from, int64_t to) { step(table, all, from, to); });
  };
  if (logits_.scalar_type() == at::kDouble)
    on_cpu(kernels<double>(), score_rows_of<double>(logits_, labels_, range_, scale_));
  else
    on_cpu(kernels<float>(), score_rows_of<float>(logits_, labels_, range_, scale_));
}

void ScoreSlice::add_to(const Statistics& s) const {
  const tensor::KernelBytes bytes({logits_}, {});
  if (!has_kernels()) return add_by_aten(s);
  run([&]<class T>(const auto& table, ScoreRows<T> rows, auto... where) {
    rows.largest = pointer<T>(s.largest);
    rows.sums = pointer<T>(s.sums);
    rows.targets = pointer<T>(s.targets);
    rows.moments = pointer<T>(s.moments);
    table.score_statistics(rows, where...);
  });
}

void ScoreSlice::differentiate(const Gradients& g) const {
  const tensor::KernelBytes bytes({logits_}, {logits_});
  if (!has_kernels()) return differentiate_by_aten(g);
  run([&]<class T>(const auto& table, ScoreRows<T> rows, auto... where) {
    rows.largest = pointer<T>(g.largest);
    rows.log_sums = pointer<T>(g.log_sums);
    rows.entropies = pointer<T>(g.entropies);
    rows.of_value = pointer<T>(g.of_value);
    rows.of_entropy = pointer<T>(g.of_entropy);
    table.score_gradient(rows, where...);
  });
}

void ScoreSlice::add_by_aten(const Statistics& s) const {
  if (range_.valid == 0) return;
  const LabelColumns labels(labels_, range_);
  const at::Tensor z = logits_.narrow(1, 0, range_.valid).mul_(scale_);
  s.targets.add_(z.gather(1, labels.column).squeeze(1).masked_fill(labels.here.bitwise_not(), 0));
  const at::Tensor largest = at::maximum(s.largest, z.amax(1)), step = s.largest - largest, factor = step.exp();
  z.sub_(largest.unsqueeze(1));
  const at::Tensor e = z.exp(), skipped = labels.counted.bitwise_not();
  if (s.moments.defined())
    s.moments.add_(step * s.sums).mul_(factor).add_((e * z.clamp_min(kLeastDifference)).sum(1).masked_fill(skipped, 0));
  s.sums.mul_(factor).add_(e.sum(1).masked_fill(skipped, 0));
  s.largest.copy_(at::where(skipped, s.largest, largest));
}

void ScoreSlice::differentiate_by_aten(const Gradients& g) const {
  const LabelColumns labels(labels_, range_);
  logits_.slice(1, range_.valid).zero_();
  if (range_.valid == 0) return;
  const at::Tensor of_value = g.of_value.defined() ? g.of_value : at::zeros_like(g.largest);
  at::Tensor d = logits_.narrow(1, 0, range_.valid);
  d.mul_(scale_).sub_((g.largest + g.log_sums).unsqueeze(1));
  const at::Tensor p = d.exp();
  if (g.of_entropy.defined())
    d.clamp_min_(kLeastDifference)
        .add_(g.entropies.unsqueeze(1))
        .mul_(g.of_entropy.unsqueeze(1))
        .add_(of_value.unsqueeze(1))
        .mul_(p);
  else
    at::mul_out(d, p, of_value.unsqueeze(1));
  d.mul_(-scale_);
  d.scatter_add_(1, labels.column, (of_value * scale_).masked_fill(labels.here.bitwise_not(), 0).unsqueeze(1));
  d.masked_fill_(labels.counted.bitwise_not().unsqueeze(1), 0);
}

}  // namespace colossal::ops
