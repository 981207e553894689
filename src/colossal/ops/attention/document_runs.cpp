#include "colossal/ops/attention/document_runs.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/ops/attention/mask.h"
#include "colossal/tensor/accelerator.h"

namespace colossal::ops {

DocumentRuns document_runs(const at::Tensor& documents, at::Device device) {
  DocumentRuns runs{.is_one_a_row = is_document_a_row(documents)};
  if (runs.is_one_a_row) return runs;
  const auto borders = document_borders(documents);
  if (!borders) return runs;
  for (size_t i = 1; i < borders->size(); ++i)
    runs.longest = std::max<int64_t>(runs.longest, (*borders)[i] - (*borders)[i - 1]);
  const at::Tensor host = at::tensor(*borders, at::kInt);
  runs.borders = (tensor::is_accelerator(device) ? host.pin_memory() : host).to(device, /*non_blocking=*/true);
  return runs;
}

}  // namespace colossal::ops
