#include "colossal/run/objectives/diffusion/prompt_pictures.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/models/image_encoder.h"
#include "colossal/run/model_source.h"
#include "colossal/run/program.h"

namespace colossal::run {

at::Tensor pixels_to_encode(const data::Picture& picture, int64_t side) {
  const int64_t shorter = std::min(picture.width, picture.height);
  const int64_t width = side * picture.width / shorter, height = side * picture.height / shorter;
  const auto whole = [](const data::Picture& p) {
    return data::Box{0, 0, static_cast<double>(p.width), static_cast<double>(p.height)};
  };
  data::Picture resized = picture;
  resized.left = resized.top = 0, resized.scale_x = resized.scale_y = 1;
  // Pillow rounds the rows before it resamples the columns, and leaves out a direction that does not change.
  if (width != resized.width) resized = data::resample_cubic(resized, whole(resized), width, resized.height);
  if (height != resized.height) resized = data::resample_cubic(resized, whole(resized), resized.width, height);
  const at::Tensor pixels = at::from_blob(resized.rgb.data(), {height, width, 3}, at::kByte)
                                .narrow(0, (height - side) / 2, side)
                                .narrow(1, (width - side) / 2, side)
                                .permute({2, 0, 1})
                                .unsqueeze(0)
                                .to(at::kDouble)
                                .div(255);
  return models::normed_pixels(pixels)[0].contiguous();
}

at::Tensor pixels_to_encode(std::string_view bytes, const std::string& name, int64_t side) {
  return pixels_to_encode(data::decode_picture(bytes, name), side);
}

std::string key_of_image_encoder(const ImageEncoderSource& encoder) {
  const ModelSource source = find_source(encoder.path, built_in());
  return source.is_preset ? concat(encoder.path, "-", encoder.seed) : checksum_of(source);
}

std::string prompt_id(const DrawnPicture& picture, const std::string& encoder) {
  return concat("image-", encoder, "-", picture.content);
}

}  // namespace colossal::run
