// Forward and backward of a micro-batch, recorded once and replayed for all others (tensor/graph.h).
//
//   train::CapturedPass pass(device, [&](const tensor::Batch& micro_batch, const at::Tensor& factor) {
//     const at::Tensor lost = model.forward(micro_batch.at("ids"), micro_batch.at("labels"));
//     (lost * factor).backward();                       // adds to gradients that stay where they are
//     return lost.detach();
//   });
//   for (...) losses.push_back(pass.run(micro_batch, loss_scale / labels));
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "colossal/tensor/batch.h"

namespace colossal::tensor {
class Graph;
}

namespace colossal::train {

/// A pass over micro-batches of the same sizes. The first runs as it is, which makes tables and asks what the device
/// can do; the second is recorded; it and all others are replays. What changes from one to the next has a place on the
/// device that the recording reads: the fields of the batch, and the factor of the loss. Nothing else that the host
/// knows may change.
class CapturedPass {
 public:
  /// Runs a micro-batch and returns a number, the same operators in the same memory each time. The micro-batch has no
  /// fields that stay whole on the host. `factor`: one fp64 number.
  using Body = std::function<at::Tensor(const tensor::Batch& micro_batch, const at::Tensor& factor)>;

  CapturedPass(at::Device device, Body body);
  ~CapturedPass();

  /// Whether a micro-batch has the fields and sizes of those before. Fields that stay whole do not count.
  bool fits(const tensor::Batch& micro_batch) const;
  /// What the body returns of a micro-batch on the device that fits(): the caller's own. Announces its operations
  /// (tensor::FlopCount), replayed or not. Nobody waits.
  at::Tensor run(const tensor::Batch& micro_batch, double factor);

 private:
  at::Device device_;
  Body body_;
  tensor::Batch held_;  // what the body is given
  at::Tensor factor_;   // likewise
  at::Tensor result_;   // of the recording
  double flops_ = 0;    // likewise
  std::unique_ptr<tensor::Graph> graph_;
};

}  // namespace colossal::train
