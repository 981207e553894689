// Scores of whole texts by a model with a head of outputs (models::ModelShape::outputs): what reward models learn.
//
//   const at::Tensor scores = text_scores(model, end, step, 2);           // of the two texts of each pair: [B, 2]
//
// A row has one or more texts, as for answer_sums() (answer_sums.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/models/model.h"
#include "colossal/nn/forward_context.h"

namespace colossal::run {

/// Returns the first output of the model at the last token of each of the first `texts` documents of each row of
/// step.batch: [B, texts] on the device of the model, the same on all ranks of the model, computed in fp32 (fp64 in
/// fp64 models). A document that a row lacks has an arbitrary score. Without the field `documents` a row is one
/// document.
///
/// Gradients: those of nn::Outputs::forward(): each rank of the model computes the same loss from the scores.
/// Communication: none, because `end` has the outputs of all tokens of the batch.
/// Errors ("model"): a model without outputs.
at::Tensor text_scores(const models::Model& model, const models::States& end, const nn::ForwardContext& step,
                       int64_t texts);

}  // namespace colossal::run
