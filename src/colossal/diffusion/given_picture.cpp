#include "colossal/diffusion/given_picture.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/input_file.h"
#include "colossal/data/pictures/buckets.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/pictures/picture_header.h"

namespace colossal::diffusion {
namespace {

constexpr int64_t kMaxPictureBytes = int64_t{1} << 28;

data::Picture read_picture(const std::string& path, const GivenFiles& files) {
  return data::decode_picture(bytes_of_given_picture(path, files), path);
}

/// Returns the middle of a picture that has the ratio of `size`.
data::Box middle_of(const data::Picture& picture, const ops::PictureSize& size) {
  const auto width = static_cast<double>(picture.width), height = static_cast<double>(picture.height);
  const double ratio = static_cast<double>(size.width) / static_cast<double>(size.height);
  const double used_width = std::min(width, height * ratio), used_height = std::min(height, width / ratio);
  return {(width - used_width) / 2, (height - used_height) / 2, used_width, used_height};
}

/// Returns the picture at `size`, [1, 3, H, W] in [0, 1].
at::Tensor resampled(const data::Picture& picture, const ops::PictureSize& size) {
  data::Picture result = picture;
  if (picture.width != size.width || picture.height != size.height)
    result = data::resample(picture, middle_of(picture, size), size.width, size.height);
  return at::from_blob(result.rgb.data(), {1, size.height, size.width, 3}, at::kByte)
      .permute({0, 3, 1, 2})
      .to(at::kDouble)
      .div(255);
}

}  // namespace

std::string bytes_of_given_picture(const std::string& path, const GivenFiles& files) {
  const auto given = files.find(path);
  return given == files.end() ? read_file(path, kMaxPictureBytes) : given->second;
}

ops::PictureSize size_of_given_picture(const std::string& image, int64_t grid) {
  const auto file = InputFile::open(image);
  const data::PictureHeader header = data::read_picture_header(data::bytes_of(*file), image);
  return {data::nearest_multiple(header.upright_height(), grid), data::nearest_multiple(header.upright_width(), grid)};
}

GivenPicture read_given_picture(const std::string& image, const std::string& mask, ops::PictureSize size, int64_t grid,
                                const GivenFiles& files) {
  const data::Picture picture = read_picture(image, files);
  if (size.pixels() == 0)
    size = {data::nearest_multiple(picture.height, grid), data::nearest_multiple(picture.width, grid)};
  GivenPicture given{.size = size, .pixels = resampled(picture, size) * 2 - 1};
  if (mask.empty()) return given;
  const data::Picture covering = read_picture(mask, files);
  require(covering.width == picture.width && covering.height == picture.height, "draw", "the mask ", mask,
          " must have the size of the image, ", picture.width, " x ", picture.height, ": got ", covering.width, " x ",
          covering.height);
  given.mask = (resampled(covering, size).mean(1, /*keepdim=*/true) >= 0.5).to(at::kDouble);
  return given;
}

at::Tensor read_control_picture(const std::string& image, const ops::PictureSize& size, const GivenFiles& files) {
  return resampled(read_picture(image, files), size).contiguous();
}

at::Tensor mask_of_cells(const at::Tensor& mask, int64_t factor) {
  return mask.slice(2, 0, {}, factor).slice(3, 0, {}, factor).contiguous();
}

}  // namespace colossal::diffusion
