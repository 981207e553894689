#include "colossal/models/text_encoder.h"

#include <ATen/ATen.h>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"

namespace colossal::models {
namespace {

constexpr int64_t kOldEnd = 2;  // the id that old folders name in place of the end token's

/// Runs all blocks but the last `skipped`, and the norm if `ends`.
States caption_states(const Model& model, const at::Tensor& ids, int64_t skipped, bool ends,
                      const at::Tensor& mask = {}) {
  const TextEncoderSizes sizes = text_encoder_of(model.shape);
  require(ids.dim() == 2 && ids.scalar_type() == at::kLong, "model",
          "ids of captions must be int64 [rows, tokens]: got ", ids.sizes(), " of ", ids.scalar_type());
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  require(ids.size(1) >= 1 && ids.size(1) <= model.shape.positions, "model", "a caption must have 1 to ",
          model.shape.positions, " tokens, the positions of its encoder: got ", ids.size(1));
  require(skipped >= 0 && skipped < blocks, "model", "clip_skip must be at least 0 and below the ", blocks,
          " blocks of the text encoder: got ", skipped);
  const at::Tensor positions = at::arange(ids.size(1), ids.options()).expand(ids.sizes());
  nn::ForwardContext step = nn::step_of(nn::token_batch(ids, positions.contiguous()));
  if (sizes.reads_pads && mask.defined()) step.documents = mask;  // pads are a document of their own
  return run_stage(model, {.first = 0, .last = blocks - skipped, .embeds = true, .ends = ends}, {}, step);
}

/// Checks that each row has the token that is pooled.
void check_ends(const at::Tensor& ids, int64_t end_id) {
  const bool has_end = end_id == kOldEnd || ids.is_meta() || ids.eq(end_id).any(1).all().item<bool>();
  require(has_end, "model", "a caption must contain the end token, which is pooled: got a row without the id ", end_id,
          "; is this the tokenizer of the text encoder?");
}

}  // namespace

at::Tensor pooled_places(const at::Tensor& ids, int64_t end_id) {
  // argmax() returns any of several equal elements, so earlier tokens get larger keys.
  const int64_t tokens = ids.size(1);
  const at::Tensor nearness = at::arange(tokens - 1, -1, -1, ids.options());
  return ((end_id == kOldEnd ? ids : ids.eq(end_id).to(at::kLong)) * tokens + nearness).argmax(1);
}

TextEncoderSizes text_encoder_of(const ModelShape& shape) {
  const auto sizes = shape.part<TextEncoderSizes>();
  require(sizes.features > 0, "model", "the states of captions need a text encoder: got ",
          with_article(shape.architecture->name), ", which ", shape.task().purpose());
  return sizes;
}

at::Tensor text_states(const Model& model, const at::Tensor& ids, int64_t clip_skip, const at::Tensor& mask) {
  return caption_states(model, ids, clip_skip, /*ends=*/true, mask)[0];
}

at::Tensor hidden_before_norm(const Model& model, const at::Tensor& ids, int64_t clip_skip) {
  return caption_states(model, ids, clip_skip, /*ends=*/false)[0];
}

at::Tensor pooled_state(const Model& model, const at::Tensor& ids) {
  const TextEncoderSizes sizes = text_encoder_of(model.shape);
  require(sizes.begins, "model", "a pooled state needs an encoder of CLIP: got ",
          with_article(model.shape.architecture->name), ", which pools no token");
  const States end = caption_states(model, ids, 0, /*ends=*/true);
  check_ends(ids, sizes.end_id);
  const at::Tensor places = pooled_places(ids, sizes.end_id);
  const at::Tensor& states = end[sizes.projection > 0 ? 1 : 0];
  return states.gather(1, places.view({-1, 1, 1}).expand({-1, 1, states.size(2)})).squeeze(1);
}

}  // namespace colossal::models
