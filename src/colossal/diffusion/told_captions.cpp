#include "colossal/diffusion/told_captions.h"

#include <ATen/ATen.h>

#include "colossal/models/conditions.h"

namespace colossal::diffusion {

using tensor::Dim;

ToldCaptions read_captions(const run::PipelineSource& source, PipelineParts& parts, const CaptionsToRead& captions) {
  const models::DenoiserSizes& sizes = source.sizes;
  ToldCaptions read;
  read.told = parts.told(captions.prompt, captions.clip_skip);
  if (sizes.reads_rate) {
    const double rate = captions.frames == 1 ? run::kPictureRate : captions.fps > 0 ? captions.fps : kDefaultRate;
    read.told.add(models::kRate, models::condition_field(at::full({1}, rate, at::kFloat)));
  }
  const auto untold_as = [](const tensor::Batch& told, int64_t is_untold) {
    return told.with("untold", {at::full({1}, is_untold, at::kLong), {Dim::Row}});
  };
  if (sizes.masks_text) read.told = untold_as(read.told, 0);
  if (!captions.is_guided) return read;
  // The null text is read at the tokens of the caption, as in training.
  if (sizes.masks_text && captions.negative.empty()) {
    read.untold = untold_as(read.told, 1);
    return read;
  }
  read.untold = read.told;
  const tensor::Batch negative = parts.told(captions.negative, captions.clip_skip);
  for (const auto& [name, field] : negative.fields()) read.untold = read.untold.with(name, field);
  return read;
}

void tell_embedding(const at::Tensor& embedding, tensor::Batch& told, tensor::Batch& untold) {
  told.add(models::kImageEmbedding, models::condition_field(embedding));
  if (untold.rows() > 0) untold.add(models::kImageEmbedding, models::condition_field(at::zeros_like(embedding)));
}

}  // namespace colossal::diffusion
