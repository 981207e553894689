#include "colossal/nn/batch_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/attention/mask.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::nn {

using tensor::Dim;

std::shared_ptr<const ops::DocumentRuns> BatchDocuments::runs(const Tokens& tokens, at::Device device) {
  if (!tensor::is_accelerator(device) || !documents_.is_cpu()) return nullptr;
  if (!runs_ || tokens != tokens_) {
    runs_ = std::make_shared<const ops::DocumentRuns>(ops::document_runs(tokens.of(documents_), device));
    tokens_ = tokens;
  }
  return runs_;
}

const at::Tensor& BatchDocuments::lengths() {
  if (lengths_.defined() || !documents_.is_cpu()) return lengths_;
  const at::Tensor documents = documents_.to(at::kLong).contiguous();
  lengths_ = at::empty_like(documents);
  const int64_t tokens = documents.size(1);
  for (int64_t row = 0; row < documents.size(0); ++row) {
    const int64_t* own = documents.const_data_ptr<int64_t>() + row * tokens;
    int64_t* lengths = lengths_.mutable_data_ptr<int64_t>() + row * tokens;
    for (int64_t first = 0, end = 0; first < tokens; first = end) {
      while (end < tokens && own[end] == own[first]) ++end;
      std::fill(lengths + first, lengths + end, end - first);
    }
  }
  return lengths_;
}

ForwardContext step_of(tensor::Batch micro_batch, ForwardContext step) {
  step.positions = micro_batch.find("positions");
  step.documents = micro_batch.find("documents");
  step.known_documents = step.documents.defined() ? std::make_shared<BatchDocuments>(step.documents) : nullptr;
  step.batch = std::make_shared<const tensor::Batch>(std::move(micro_batch));
  return step;
}

tensor::Batch token_batch(at::Tensor ids, at::Tensor positions) {
  tensor::Batch batch;
  batch.add("ids", {std::move(ids), {Dim::Row, Dim::Token}});
  if (positions.defined()) batch.add("positions", {std::move(positions), {Dim::Row, Dim::Token}});
  return batch;
}

}  // namespace colossal::nn
