#include "colossal/fold/pair_heads.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/models/folding/confidence.h"

namespace colossal::fold {
namespace {

constexpr int64_t kErrorBins = 64;

}  // namespace

at::Tensor lddt_by_rows(const models::FoldingHeads& heads, const at::Tensor& structure, int64_t rows) {
  std::vector<at::Tensor> parts;
  const int64_t residues = structure.size(1);
  for (int64_t first = 0; first < residues; first += rows)
    parts.push_back(models::plddt(heads.lddt(structure.narrow(1, first, std::min(rows, residues - first)))).squeeze(0));
  return at::cat(parts);
}

ErrorsOfPairs errors_by_rows(const models::FoldingHeads& heads, const at::Tensor& pairs,
                             const std::vector<int64_t>& kept, bool keeps_errors) {
  const int64_t residues = pairs.size(2), own = pairs.size(1), rows = std::max<int64_t>(1, residues / kErrorBins);
  const auto options = pairs.options().dtype(at::promote_types(pairs.scalar_type(), at::kFloat));
  const bool has_all = static_cast<int64_t>(kept.size()) == residues;
  at::Tensor mask = at::ones({1, residues}, options), index;
  if (!has_all) {
    index = at::tensor(kept, at::kLong).to(pairs.device());
    mask = at::zeros({1, residues}, options).index_fill_(1, index, 1);
  }
  at::Tensor terms = at::empty({1, own, residues}, options), errors;
  if (keeps_errors) errors = at::empty({own, residues}, options);
  for (int64_t first = 0; first < own; first += rows) {
    const int64_t count = std::min(rows, own - first);
    const at::Tensor logits = heads.errors(pairs.narrow(1, first, count));
    terms.narrow(1, first, count).copy_(models::tm_terms(logits, mask));
    if (keeps_errors) errors.narrow(0, first, count).copy_(models::expected_errors(logits)[0]);
  }
  terms = heads.ranks->gathered(terms, 1, residues);
  if (keeps_errors) errors = heads.ranks->gathered(errors, 0, residues);
  ErrorsOfPairs found{.ptm = models::predicted_tm(terms, mask.unsqueeze(2) * mask.unsqueeze(1))};
  if (keeps_errors) found.errors = has_all ? errors : errors.index_select(0, index).index_select(1, index);
  return found;
}

}  // namespace colossal::fold
