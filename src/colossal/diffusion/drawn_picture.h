// A picture that was drawn, or a frame of a clip.
//
//   write_file("a.png", drawn.png);
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "colossal/data/pictures/picture.h"

namespace colossal::diffusion {

/// A picture, or a frame of a clip, and how it was drawn.
struct DrawnPicture {
  std::string png;  ///< the file, with the text chunk `parameters`; empty = a frame of a clip
  int64_t seed = 0;
  std::string sampler{};
  int64_t steps = 0;
  double seconds = 0;             ///< a picture's share of the time, or that of a clip up to the frame
  std::string note{};             ///< PipelineParts::note_of_tiles() of a picture in tiles
  data::Picture pixels{};         ///< of a frame
  int64_t frame = 0, frames = 0;  ///< number of the frame, from 0, and of all frames of its clip; 0 = a picture
  double fps = 0;                 ///< frames a second of the clip
  /// Ratio of an approximate picture or clip to its exact drawing, in dB; of a clip that of all its frames, which its
  /// last frame has. nullopt = not compared
  std::optional<double> psnr{};
};

}  // namespace colossal::diffusion
