// Makes the ForwardContext of a micro-batch: the fields of the batch that layers read.
//
//   nn::ForwardContext step = nn::step_of(micro_batch);              // positions and documents are fields of it
//   step.training = true;
//   nn::ForwardContext decoding = nn::step_of(nn::token_batch(ids, positions));
//   decoding.parts.set(nn::Decoding{cache.get()});
#pragma once
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"

namespace colossal::nn {

/// Returns `step` with that micro-batch. step.positions and step.documents are its fields `positions` and `documents`,
/// or undefined if it has no such field. Values that `step` cached for the documents of another batch are dropped.
ForwardContext step_of(tensor::Batch micro_batch, ForwardContext step = {});

/// Returns a batch of tokens without labels: fields `ids` [B, S] and, if defined, `positions` [B, S], int64.
tensor::Batch token_batch(at::Tensor ids, at::Tensor positions = {});

}  // namespace colossal::nn
