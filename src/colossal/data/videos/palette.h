// A picture with at most 256 colours, as GIF stores it.
//
//   const data::PalettePicture few = data::with_palette(picture);
//   const auto& first = few.colours[few.pixels[0]];   // red, green and blue of the pixel at the top left
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "colossal/data/pictures/picture.h"

namespace colossal::data {

/// A picture of colours from a list.
struct PalettePicture {
  std::vector<std::array<uint8_t, 3>> colours{};  ///< 1 to 256
  std::vector<uint8_t> pixels{};                  ///< of each pixel, the index of its colour
};

/// Returns the picture in at most 256 colours, chosen by median cut (Heckbert, SIGGRAPH 1982): the box of colours that
/// is widest for its number of pixels is divided at the median of its longest side, until there are 256 boxes; each
/// becomes the mean of its pixels. A picture of at most 256 colours keeps them all.
///
/// Colours follow from the picture alone, so a clip can be written frame by frame, and there is no dithering: its noise
/// would differ from frame to frame and not compress. Errors ("data"): no pixels.
/// Cost: O(pixels log(colours)), and 8 bytes a pixel.
PalettePicture with_palette(const Picture& picture);

}  // namespace colossal::data
