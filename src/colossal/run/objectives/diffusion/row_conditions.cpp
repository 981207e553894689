#include "colossal/run/objectives/diffusion/row_conditions.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "colossal/base/error.h"
#include "colossal/run/objectives/diffusion/drawn_clips.h"
#include "colossal/run/objectives/diffusion/prompt_pictures.h"

namespace colossal::run {
namespace {

/// Returns the numbers of the field `sizes`. The crop is in the middle of the picture, which is resampled to cover it.
at::Tensor sizes_of(const ShownPicture& shown) {
  const data::CaptionedPicture& file = shown.pictures.files->at(shown.index);
  const double height = static_cast<double>(file.height), width = static_cast<double>(file.width),
               to_height = static_cast<double>(shown.bucket.size.height),
               to_width = static_cast<double>(shown.bucket.size.width),
               scale = std::max(to_height / height, to_width / width);
  const auto cut = [scale](double side, double to_side) { return std::floor((scale * side - to_side) / 2 + 0.5); };
  return at::tensor({height, width, cut(height, to_height), cut(width, to_width), to_height, to_width}, at::kFloat);
}

at::Tensor condition_of(const std::string& name, const ShownPicture& shown) {
  if (name == models::kRate)
    return at::scalar_tensor(shown.bucket.frames == 1 ? kPictureRate : shown.pictures.fps, at::kFloat);
  if (name == models::kSizes) return sizes_of(shown);
  if (name == models::kGuidance) return at::scalar_tensor(1, at::kFloat);
  if (name == models::kImageEmbedding && shown.cache)
    return shown.cache->picture(prompt_id(shown.pictures.at(shown.index), shown.image_encoder), /*mirrored=*/false);
  require(name == models::kControl, "data", "rows of pictures have no field ", name,
          ", which the model reads; name another model");
  const at::Tensor control = control_pixels_of(shown.pictures, shown.index, shown.bucket.size);
  return shown.is_mirrored ? control.flip({2}) : control;
}

}  // namespace

tensor::Batch row_conditions(const std::vector<models::Condition>& conditions, const ShownPicture& shown) {
  tensor::Batch told;
  for (const models::Condition& one : conditions)
    told.add(one.name, models::condition_field(condition_of(one.name, shown).unsqueeze(0)));
  return told;
}

}  // namespace colossal::run
