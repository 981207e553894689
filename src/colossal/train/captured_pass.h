// Forward and backward of a micro-batch, captured once and replayed for all others (tensor/graph.h).
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

/// A pass over micro-batches of the same sizes. The first micro-batch runs without capture, which creates tables and
/// queries the device. The second one is captured. It and all later ones are replays. The inputs that change have fixed
/// memory on the device, which the graph reads: the fields of the batch, and the factor of the loss. No other value
/// that the host uses may change.
class CapturedPass {
 public:
  /// Runs a micro-batch and returns one number. Every call must run the same operators in the same memory. The
  /// micro-batch has no fields with stays_whole. `factor` is one fp64 number.
  using Body = std::function<at::Tensor(const tensor::Batch& micro_batch, const at::Tensor& factor)>;

  CapturedPass(at::Device device, Body body);
  ~CapturedPass();

  /// Returns true if the micro-batch has the same fields, sizes and dtypes as earlier ones, ignoring fields with
  /// stays_whole. Returns true before the first run().
  bool fits(const tensor::Batch& micro_batch) const;
  /// Returns the result of the body for a micro-batch that fits() and is on the device. The caller owns the result.
  /// Announces the operations (tensor::FlopCount), also of replays. Does not wait for the device.
  at::Tensor run(const tensor::Batch& micro_batch, double factor);

 private:
  at::Device device_;
  Body body_;
  tensor::Batch held_;  // fixed input tensors of the body
  at::Tensor factor_;   // fixed factor input of the body
  at::Tensor result_;   // output of the captured body
  double flops_ = 0;    // operations of the captured body
  std::unique_ptr<tensor::Graph> graph_;
};

}  // namespace colossal::train
