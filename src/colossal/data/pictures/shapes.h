// Drawn pictures of ten shapes with captions, for examples and tests that need pictures but no download, and clips in
// which these shapes move.
//
//   const data::Picture picture = data::draw_shape(6, 1, 64, 48);   // a star in random colours, at a random place
//   std::cout << data::shape_caption(6);                             // a star
//   const data::Picture ninth = data::draw_moving_shape(6, 1, 64, 48, 8);   // the star, 8 frames later
//   std::cout << data::moving_shape_caption(6, 1);                   // a star moves left
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/pictures/picture.h"

namespace colossal::data {

constexpr int64_t kShapes = 10;  ///< number of shapes; a class is the number of a shape, 0 to 9

/// Returns the names of the shapes in the order of their numbers: circle, ring, square, triangle, diamond, cross, star,
/// heart, hourglass, bars.
std::vector<std::string> shape_names();

/// Returns the caption of a picture of this shape: "a circle". Errors ("data"): there is no such shape.
std::string shape_caption(int64_t shape);

/// Returns a picture of one shape of one colour on a ground of another colour, with smooth edges.
///
/// The shape spans 0.6 to 0.9 of the picture's shorter side in both directions, and each of its three channels is at
/// least 0.2 (of 0 to 1) brighter than that of the ground. Size, place and colours are drawn from `seed` alone:
/// pictures of two shapes from one seed differ in form only, and pictures of two sizes show the same. Each shape is
/// symmetric, so that a picture mirrored left to right shows the same shape.
/// Errors ("data"): there is no such shape; a width or height below 1 or above kMaxSide, or more than kMaxPixels
///                  pixels.
/// Cost: proportional to the number of pixels, about 0.2 ms for 32 x 32.
Picture draw_shape(int64_t shape, uint64_t seed, int64_t width, int64_t height);

/// Returns the outline of the shape in draw_shape(), as a control picture: white where the edge of the shape passes,
/// and black elsewhere. Errors ("data") and cost: those of draw_shape().
Picture draw_shape_outline(int64_t shape, uint64_t seed, int64_t width, int64_t height);

/// Returns frame `frame` of the endless clip in which the shape of draw_shape() moves. Frame 0 is that picture, bit for
/// bit.
///
/// The shape moves left, right, up or down. From each frame to the next it moves by the same share of the picture's
/// side, between 1/16 and 1/8. It leaves at one side, and returns at the other once it is out of sight. Direction and
/// speed are drawn from `seed` alone, so clips of any length and size show the same.
/// Errors ("data"): those of draw_shape(); a frame below 0 or above 2^31.
Picture draw_moving_shape(int64_t shape, uint64_t seed, int64_t width, int64_t height, int64_t frame);

/// Returns the caption of the clip: "a circle moves left", "two bars move up". Errors ("data"): there is no such shape.
std::string moving_shape_caption(int64_t shape, uint64_t seed);

/// Returns the number of pictures in an epoch that a data.path asks for: 10,000 for `builtin-shapes`, N for
/// `builtin-shapes:N`. Returns nothing for any other path.
/// Errors ("data"): N is not a number from 1 to 2^40. A path that is almost the name, while no file has that path; the
///                  message names what is nearest.
std::optional<int64_t> parse_builtin_shapes(const std::string& path);

/// Returns the number of held-out pictures of an epoch of `count` pictures: the share `held_out` of them, at least 1.
/// It is 0 if the share is 0. Held-out pictures are drawn in addition to those of the epoch.
int64_t held_out_shapes(int64_t count, double held_out);

/// Returns the shape of picture `index` of an epoch. All shapes are equally frequent if the count divides by ten.
constexpr int64_t shape_of(int64_t index) { return index % kShapes; }

/// Returns the seed of the training picture whose sample has the seed `sample` (Samples::fill).
uint64_t training_shape_seed(uint64_t sample);

/// Returns the seed of held-out picture `index`. It is the same in every run and at every evaluation, and differs from
/// the seeds of training pictures but for a collision of 64 random bits.
uint64_t held_out_shape_seed(int64_t index);

}  // namespace colossal::data
