#include "colossal/models/caption_parts.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/models/text_encoder.h"

namespace colossal::models {

using tensor::Dim;

std::string caption_part_name(const char* stem, size_t i) {
  return i == 0 ? std::string(stem) : concat(stem, "_", i + 1);
}

int64_t caption_states_of(const DenoiserSizes& sizes) {
  int64_t beside = 0, after = sizes.zero_tokens;
  for (const CaptionPart& part : sizes.captions)
    if (part.is_after)
      after += part.tokens;
    else if (part.states != CaptionStates::None)
      beside = part.tokens;
  return beside + after;
}

tensor::Batch caption_batch(const at::Tensor& text, const at::Tensor& pooled, const at::Tensor& mask) {
  tensor::Batch batch;
  if (text.defined()) batch.add("text", {text, {Dim::Row, Dim::Other, Dim::Feature}});
  if (pooled.defined()) batch.add("pooled", {pooled, {Dim::Row, Dim::Other}});
  if (mask.defined()) batch.add("text_mask", {mask, {Dim::Row, Dim::Other}});
  return batch;
}

tensor::Batch read_caption(const CaptionPart& part, const Model& encoder, const at::Tensor& ids, const at::Tensor& mask,
                           int64_t clip_skip) {
  at::Tensor text, pooled;
  const bool is_whole = !text_encoder_of(encoder.shape).begins;  // clip_skip is an option of CLIP
  const int64_t skipped = is_whole ? 0 : clip_skip, last = part.states == CaptionStates::Hidden ? 1 : 0,
                most = static_cast<int64_t>(encoder.blocks.size()) - 1 - last;
  require(part.states == CaptionStates::None || (skipped >= 0 && skipped <= most), "model", "clip_skip must be 0 to ",
          most, ", because one of the ", encoder.blocks.size(), " blocks of the text encoder stays",
          last > 0 ? " beside the last, whose states are not read" : "", ": got ", skipped);
  const at::Tensor read = part.is_masked ? mask : at::Tensor();
  switch (part.states) {
    case CaptionStates::None:
      break;
    case CaptionStates::Normed:
      text = text_states(encoder, ids, skipped, read);
      break;
    case CaptionStates::Hidden:
      text = hidden_before_norm(encoder, ids, skipped + 1);
      break;
  }
  if (part.pooled) pooled = pooled_state(encoder, ids);
  return caption_batch(text, pooled, read);
}

tensor::Batch joined_captions(const DenoiserSizes& sizes, const std::vector<tensor::Batch>& parts) {
  require(parts.size() == sizes.captions.size(), "model", "captions must be read by each of ", sizes.captions.size(),
          " text encoders: got ", parts.size());
  std::vector<at::Tensor> beside, after, pooled;
  at::Tensor mask;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (const at::Tensor text = parts[i].find("text"); text.defined())
      (sizes.captions[i].is_after ? after : beside).push_back(text);
    if (const at::Tensor one = parts[i].find("pooled"); one.defined()) pooled.push_back(one);
    if (const at::Tensor one = parts[i].find("text_mask"); one.defined()) mask = one;
  }
  at::Tensor text = beside.empty() ? at::Tensor() : beside.size() == 1 ? beside.front() : at::cat(beside, -1);
  const auto features = [](const at::Tensor& x) { return x.defined() ? x.size(-1) : 0; };
  if (!after.empty() || sizes.zero_tokens > 0) {
    if (text.defined() && features(text) < sizes.text)
      text = at::constant_pad_nd(text, {0, sizes.text - features(text)});
    if (text.defined()) after.insert(after.begin(), text);
    for (const at::Tensor& one : after)
      require(features(one) == sizes.text, "model", "text encoders must give states of ", sizes.text,
              " features, which the model reads: got ", features(one));
    if (sizes.zero_tokens > 0 && !after.empty())
      after.push_back(after.front().new_zeros({after.front().size(0), sizes.zero_tokens, sizes.text}));
    if (!after.empty()) text = at::cat(after, 1);
  }
  const at::Tensor whole = pooled.empty() ? at::Tensor() : pooled.size() == 1 ? pooled.front() : at::cat(pooled, -1);
  require(features(text) == sizes.text && features(whole) == sizes.pooled, "model",
          "text encoders must give states of ", sizes.text, " features and ", sizes.pooled,
          " pooled ones, which the model reads: got ", features(text), " and ", features(whole));
  return caption_batch(text, whole, mask);
}

}  // namespace colossal::models
