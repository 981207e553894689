// What a denoiser reads of captions: the states of one or several text encoders, joined into its fields.
//
//   DenoiserSizes::captions, of SDXL:
//     {{.preset = "clip-l", .states = CaptionStates::Hidden},
//      {.preset = "open-clip-bigg", .states = CaptionStates::Hidden, .pooled = true}}
//
//   std::vector<tensor::Batch> read;
//   for (size_t i = 0; i < sizes.captions.size(); ++i)
//     read.push_back(models::read_caption(sizes.captions[i], encoder(i), ids[i], mask[i]));
//   const tensor::Batch told = models::joined_captions(sizes, read);      // `text` [B, 77, 2048], `pooled` [B, 1280]
//
// Encoders need not be in memory together: what is read of each is small.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/models/model.h"
#include "colossal/models/shape_parts.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// Returns the name of the i-th text encoder of a pipeline, counted from 0: "text_encoder", "text_encoder_2" and so on.
/// `stem`: "tokenizer" for that of its tokenizer, or "ids" for the field of its ids.
std::string caption_part_name(const char* stem, size_t i);

/// Returns the number of text states that joined_captions() gives.
int64_t caption_states_of(const DenoiserSizes& sizes);

/// Returns what the part reads of an encoder for captions of `ids`, int64 [B, tokens] on the device of the encoder: the
/// field `text` [B, tokens, features] unless CaptionPart::states is None, and with CaptionPart::pooled the field
/// `pooled` [B, features]. `mask`, int64 [B, tokens]: 1 = a token of the caption, 0 = a pad; read with
/// CaptionPart::is_masked, and then also the field `text_mask`. `clip_skip`: blocks that are left out, as in
/// text_states(); of encoders whose states are Hidden, besides the last one. Encoders whose captions have no begin
/// token (T5) leave none out.
/// Errors: those of text_states(), hidden_before_norm() and pooled_state(); ("model") clip_skip that leaves no block.
tensor::Batch read_caption(const CaptionPart& part, const Model& encoder, const at::Tensor& ids, const at::Tensor& mask,
                           int64_t clip_skip = 0);

/// Returns the fields that the model reads, of what read_caption() returned for each of DenoiserSizes::captions:
/// - `text`: features of encoders one after another, filled with zeros up to DenoiserSizes::text. The states of a part
///   with CaptionPart::is_after follow them as further tokens, and then DenoiserSizes::zero_tokens zeros.
/// - `pooled`: pooled states one after another.
/// - `text_mask`: that of the part that has one.
///
/// Errors ("model"): encoders that do not give DenoiserSizes::text or DenoiserSizes::pooled features; another number of
/// parts.
tensor::Batch joined_captions(const DenoiserSizes& sizes, const std::vector<tensor::Batch>& parts);

/// Returns the fields of one or several captions with the kinds of their dimensions. Tensors may be undefined, and are
/// then left out.
tensor::Batch caption_batch(const at::Tensor& text, const at::Tensor& pooled = {}, const at::Tensor& mask = {});

}  // namespace colossal::models
