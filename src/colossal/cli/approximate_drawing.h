// A drawing that `colossal draw --approximate` makes, whose first picture is also drawn exactly.
//
//   const DrawAll draw = [&](const auto& options, const auto& given, const auto& take) {
//     drawer.draw(options, given, take);
//   };
//   draw_beside_exact(task.options, given, draw, [&](const diffusion::DrawnPicture& drawn) { files.write(drawn); });
#pragma once
#include <functional>
#include <string>

#include "colossal/diffusion/draw_options.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/drawn_picture.h"

namespace colossal::cli {

using TakeDrawn = std::function<void(const diffusion::DrawnPicture&)>;
/// Draws as diffusion::Drawer::draw() does.
using DrawAll =
    std::function<void(const diffusion::DrawOptions&, const diffusion::GivenPictures&, const TakeDrawn& take)>;

/// Draws with these options, and passes the pictures to `take`. If the options are approximate, `draw` is called twice:
/// first for the first picture alone, exactly. Its approximation then has DrawnPicture::psnr. All ranks must call it.
/// Errors: those of `draw`.
void draw_beside_exact(const diffusion::DrawOptions& options, const diffusion::GivenPictures& given,
                       const DrawAll& draw, const TakeDrawn& take);

/// Returns the line for the user about a compared picture: "psnr 28.13 dB to the exact drawing"; empty = not compared.
std::string comparison_line(const diffusion::DrawnPicture& drawn);

}  // namespace colossal::cli
