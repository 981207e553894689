#include "colossal/infer/request.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace colossal::infer {

LogProbabilities log_probabilities(const at::Tensor& logits, int64_t token, int64_t best,
                                   const std::vector<int64_t>& alternatives) {
  const at::Tensor all = logits.to(at::kDouble).log_softmax(-1).cpu();
  const double* values = all.const_data_ptr<double>();
  LogProbabilities result{values[token], {}};
  for (const int64_t id : alternatives) result.alternatives.push_back(values[id]);
  if (best == 0) return result;
  // Not a sort of the whole vocabulary, because a step may score hundreds of tokens of a prompt. NaN comes first, so
  // that the order stays total.
  const auto place_of = [values](int64_t id) {
    return std::pair(std::isnan(values[id]) ? -INFINITY : -values[id], id);
  };
  std::vector<int64_t> ids(static_cast<size_t>(all.size(0)));
  std::iota(ids.begin(), ids.end(), int64_t{0});
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(best, all.size(0)));
  std::partial_sort(ids.begin(), end, ids.end(), [&](int64_t a, int64_t b) { return place_of(a) < place_of(b); });
  for (auto id = ids.begin(); id != end; ++id) result.best.emplace_back(*id, values[*id]);
  return result;
}

}  // namespace colossal::infer
