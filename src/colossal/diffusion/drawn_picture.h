// A picture that was drawn.
//
//   write_file("a.png", drawn.png);
#pragma once
#include <cstdint>
#include <string>

namespace colossal::diffusion {

/// A picture and how it was drawn.
struct DrawnPicture {
  std::string png;  ///< the file, with the text chunk `parameters`
  int64_t seed = 0;
  std::string sampler{};
  int64_t steps = 0;
  double seconds = 0;  ///< a picture's share of the time
  std::string note{};  ///< PipelineParts::note_of_tiles() of a picture in tiles
};

}  // namespace colossal::diffusion
