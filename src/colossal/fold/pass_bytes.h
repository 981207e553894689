// The memory of a pass, counted on shapes before a weight is read.
//
//   fold::PassShapes shapes(shape, at::kFloat);
//   const int64_t bytes = shapes.bytes({.residues = 600});              // of activations, without weights
#pragma once
#include <cstdint>

#include "colossal/models/folding/folding_model.h"
#include "colossal/nn/parameter.h"

namespace colossal::fold {

/// A folding model without values.
class PassShapes {
 public:
  /// Errors ("fold"): a model that does not fold proteins. Cost: milliseconds.
  PassShapes(const models::ModelShape& shape, at::ScalarType dtype);
  /// Returns the most bytes that tensors of one pass without gradients have at a time on one rank, fields and heads
  /// included. Ranks of a pipeline need less. Cost: the operators of a pass on shapes, some milliseconds a block.
  int64_t bytes(const models::FoldingBatch& sizes) const;
  /// Returns the bytes of one z (U).
  int64_t pair_bytes(const models::FoldingBatch& sizes) const;
  /// Returns true if the model predicts errors of aligned points.
  bool predicts_errors() const;

 private:
  nn::Parameters parameters_;
  models::Model model_;
};

}  // namespace colossal::fold
