// Log-probabilities of whole answers, which losses of preferences compare.
//
//   const at::Tensor sums = answer_sums(model, end, step, 2);           // [B, 2]: the two texts of each pair
//   const at::Tensor means = sums / answer_lengths(*step.batch, 2);     // per token
//
// A row has one or more texts, each a document of its own: 0, 1 ... of the field `documents`. Padding is the document
// after the last text (data/chats/chat_rows.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/models/model.h"
#include "colossal/nn/forward_context.h"
#include "colossal/tensor/batch.h"

namespace colossal::run {

/// Returns the sums of the log-probabilities of the labels that count, of each of the first `texts` documents of each
/// row of step.batch: [B, texts] on the device of the model, the same on all ranks of the model, in fp32 (fp64 in fp64
/// models). Without the field `documents` a row is one document.
///
/// Gradients: those of nn::LossHead::scores(): each rank of the model computes the same loss from the sums.
/// Communication: that of nn::LossHead::scores(), which joins the tokens that ranks split. The sums need none.
/// Memory:  no tensor of size [tokens, vocabulary].
/// Errors:  those of models::head_of().
at::Tensor answer_sums(const models::Model& model, const models::States& end, const nn::ForwardContext& step,
                       int64_t texts);

/// Returns the number of labels that count of each of the first `texts` texts of each row: int64 [B, texts], at least
/// 1. It is the field `answer_lengths`, which samples count, because a rank may have only some labels of a row.
/// Errors ("data"): a batch without the field, or with fewer texts.
at::Tensor answer_lengths(const tensor::Batch& batch, int64_t texts);

}  // namespace colossal::run
