#include "colossal/infer/request.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace colossal::infer {

LogProbabilities log_probabilities(const at::Tensor& logits, int64_t token, int64_t best) {
  const at::Tensor all = logits.to(at::kDouble).log_softmax(-1).cpu();
  LogProbabilities told{all.const_data_ptr<double>()[token], {}};
  if (best == 0) return told;
  const auto [sorted, ids] = all.sort(/*stable=*/true, -1, /*descending=*/true);
  for (int64_t i = 0; i < std::min(best, all.size(0)); ++i)
    told.best.emplace_back(ids.const_data_ptr<int64_t>()[i], sorted.const_data_ptr<double>()[i]);
  return told;
}

}  // namespace colossal::infer
