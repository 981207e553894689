// The picture from which a drawing begins, and the mask of what is painted anew, as files of a user.
//
//   const GivenPicture given = read_given_picture("cat.png", "mask.png", {512, 512}, /*grid=*/8);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "colossal/diffusion/draw_options.h"
#include "colossal/ops/convolution.h"

namespace colossal::diffusion {

struct GivenPicture {
  ops::PictureSize size{};  ///< in pixels
  at::Tensor pixels{};      ///< [1, 3, H, W] in [-1, 1]
  at::Tensor mask{};        ///< [1, 1, H, W] of 0 and 1 = painted anew; undefined = no mask
};

/// Returns the size at which a picture is read that has none given: its own, on the grid. It reads the header alone.
/// Errors: those of read_file() and data::read_picture_header().
ops::PictureSize size_of_given_picture(const std::string& image, int64_t grid);

/// Returns the bytes of a picture: those that `files` has by this name, or else those of its file. Errors ("file"): a
/// file that cannot be read.
std::string bytes_of_given_picture(const std::string& path, const GivenFiles& files);

/// Reads a picture and its mask; `mask` may be empty. The picture is cut to the ratio of `size` around its middle, and
/// resampled; zeros = its own size, with sides that are the nearest multiples of `grid` pixels. A pixel is painted anew
/// where the mask is at least half white. Pictures that `files` has by these names are not read from paths.
/// Errors ("draw"): files that cannot be read; a mask of another size than the picture. ("data"): damaged files.
GivenPicture read_given_picture(const std::string& image, const std::string& mask, ops::PictureSize size, int64_t grid,
                                const GivenFiles& files = {});

/// Reads a control picture, cut to the ratio of `size` around its middle and resampled, [1, 3, H, W] in [0, 1].
/// Errors: those of read_given_picture().
at::Tensor read_control_picture(const std::string& image, const ops::PictureSize& size, const GivenFiles& files = {});

/// Returns the mask of cells of `factor` pixels a side, [1, 1, h, w]: that of the first pixel of each cell.
at::Tensor mask_of_cells(const at::Tensor& mask, int64_t factor);

}  // namespace colossal::diffusion
