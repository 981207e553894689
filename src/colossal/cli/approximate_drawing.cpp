#include "colossal/cli/approximate_drawing.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/evaluate/picture_similarity.h"

namespace colossal::cli {
namespace {

/// Returns the pixels of a picture or of a frame of a clip.
data::Picture pixels_of(const diffusion::DrawnPicture& drawn) {
  return drawn.frames > 0 ? drawn.pixels : data::decode_picture(drawn.png, "the drawn picture");
}

}  // namespace

void draw_beside_exact(const diffusion::DrawOptions& options, const diffusion::GivenPictures& given,
                       const DrawAll& draw, const TakeDrawn& take) {
  if (options.approximate.empty()) return draw(options, given, take);
  diffusion::DrawOptions exactly = options;
  exactly.approximate.clear();
  exactly.count = 1;
  diffusion::GivenPictures first = given;
  if (first.latents.defined()) first.latents = first.latents.narrow(0, 0, 1);
  std::vector<data::Picture> exact;  // a picture, or the frames of a clip
  draw(exactly, first, [&](const diffusion::DrawnPicture& drawn) { exact.push_back(pixels_of(drawn)); });
  size_t seen = 0;
  double sum = 0;
  draw(options, given, [&](const diffusion::DrawnPicture& drawn) {
    diffusion::DrawnPicture compared = drawn;
    if (seen < exact.size()) {
      // Errors are summed, not decibels: of a given frame, which has no error, these would hide those of the others.
      sum += std::pow(10, -evaluate::peak_signal_to_noise(pixels_of(drawn), exact[seen]) / 10);
      if (++seen == exact.size()) compared.psnr = -10 * std::log10(sum / static_cast<double>(seen));
    }
    take(compared);
  });
}

std::string comparison_line(const diffusion::DrawnPicture& drawn) {
  return drawn.psnr ? concat("psnr ", fixed_text(*drawn.psnr, 2), " dB to the exact drawing") : "";
}

}  // namespace colossal::cli
