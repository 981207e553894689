// The states of captions that a denoiser of pictures reads, computed in one process.
//
//   const at::Tensor states = models::text_states(model, ids);        // ids [B, 77] int64 -> [B, 77, features]
//   const at::Tensor pooled = models::pooled_state(model, ids);       // one vector a caption
//
// A family sets TextEncoderSizes in Architecture::settle. Its model reads the fields `ids` and `positions` [B, T] or
// some of them, and ends in state 0, the states of all tokens. State 1 is their projection, if it has one. The caller
// says whether gradients are recorded (at::NoGradGuard).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/models/model.h"
#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {

/// Returns the sizes of a text encoder. Errors ("model"): another kind of model.
TextEncoderSizes text_encoder_of(const ModelShape& shape);

/// Returns the states of all tokens, [B, T, features], after all blocks but the last `clip_skip`, and after the last
/// norm. `ids` [B, T] are int64, on the device of the model. It is what encode_prompt() of diffusers 0.42 computes with
/// that clip_skip. `mask` [B, T], int64: an encoder with TextEncoderSizes::reads_pads then attends only among tokens of
/// one number, 1 = a token of the caption and 0 = a pad; undefined = all tokens are read.
/// Errors ("model"): a model that is no text encoder; ids of another shape, or more than the model has positions;
///                   clip_skip outside [0, blocks).
at::Tensor text_states(const Model& model, const at::Tensor& ids, int64_t clip_skip = 0, const at::Tensor& mask = {});

/// Returns the states without the last norm. With clip_skip = 1, these are hidden_states[-2] of transformers, which
/// SDXL reads. Errors: as of text_states().
at::Tensor hidden_before_norm(const Model& model, const at::Tensor& ids, int64_t clip_skip = 1);

/// Returns the index of the pooled token of each row of `ids`, int64 [B, T]: [B]. `end_id`: TextEncoderSizes::end_id.
/// A row without the end token gives any index.
at::Tensor pooled_places(const at::Tensor& ids, int64_t end_id);

/// Returns the state of the pooled token of each row after the last norm, [B, features], or of a model with a
/// projection its projection, [B, projection]. The pooled token is the first of id TextEncoderSizes::end_id. If that is
/// 2, it is the first token of the row's largest id: transformers computes so for old folders, which name a wrong id.
/// Errors: as of text_states(); ("model"): a row without the end token; an encoder that pools no token (T5).
at::Tensor pooled_state(const Model& model, const at::Tensor& ids);

}  // namespace colossal::models
