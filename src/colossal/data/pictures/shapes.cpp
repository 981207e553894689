#include "colossal/data/pictures/shapes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/base/seed.h"
#include "colossal/base/suggest.h"

namespace colossal::data {
namespace {

constexpr const char* kName = "builtin-shapes";
constexpr int64_t kDefaultCount = 10'000, kMaxCount = int64_t{1} << 40;
constexpr int64_t kSubpixels = 4;  // points of a pixel in each direction, of which the share inside the shape is taken

/// A point in the frame of a shape: x to the right and y down, from -1 to 1. Every shape touches all four borders, so
/// that the box around a shape does not depend on its class.
struct Point {
  double x, y;
};

double squared(double x) { return x * x; }

bool in_circle(Point p) { return squared(p.x) + squared(p.y) <= 1; }

bool in_ring(Point p) { return in_circle(p) && squared(p.x) + squared(p.y) >= squared(0.55); }

bool in_square(Point) { return true; }

bool in_triangle(Point p) { return 2 * std::abs(p.x) <= p.y + 1; }

bool in_diamond(Point p) { return std::abs(p.x) + std::abs(p.y) <= 1; }

bool in_cross(Point p) { return std::min(std::abs(p.x), std::abs(p.y)) <= 1.0 / 3; }

/// Returns true if at most one of the five lines through the tips of a star, which have the same distance from its
/// centre, has the point on its outer side.
bool in_star(Point p) {
  // A star of radius 1 has this half width, and its lowest points are this far below its middle.
  constexpr double kHalfWidth = 0.951056516295153572, kBottom = 0.809016994374947424;
  constexpr double kDistance = 0.309016994374947424;
  constexpr std::array<Point, 5> kNormals{{{0, -1},
                                           {0.951056516295153572, -0.309016994374947424},
                                           {-0.951056516295153572, -0.309016994374947424},
                                           {0.587785252292473129, 0.809016994374947424},
                                           {-0.587785252292473129, 0.809016994374947424}}};
  const double x = p.x * kHalfWidth, y = (p.y + 1) / 2 * (1 + kBottom) - 1;
  return std::count_if(kNormals.begin(), kNormals.end(), [&](Point n) { return n.x * x + n.y * y > kDistance; }) <= 1;
}

/// Two half discs above a triangle.
bool in_heart(Point p) {
  const double x = std::abs(p.x);
  return p.y <= -0.5 ? squared(x - 0.5) + squared(p.y + 0.5) <= 0.25 : 1.5 * x <= 1 - p.y;
}

bool in_hourglass(Point p) { return std::abs(p.x) <= std::abs(p.y); }

bool in_bars(Point p) { return std::abs(p.y) >= 1.0 / 3; }

struct Shape {
  const char* name;
  const char* caption;
  bool (*contains)(Point);
  const char* moves = "moves";  // the verb of the caption
};

constexpr std::array<Shape, kShapes> kTable{{{"circle", "a circle", in_circle},
                                             {"ring", "a ring", in_ring},
                                             {"square", "a square", in_square},
                                             {"triangle", "a triangle", in_triangle},
                                             {"diamond", "a diamond", in_diamond},
                                             {"cross", "a cross", in_cross},
                                             {"star", "a star", in_star},
                                             {"heart", "a heart", in_heart},
                                             {"hourglass", "an hourglass", in_hourglass},
                                             {"bars", "two bars", in_bars, "move"}}};

const Shape& shape_at(int64_t shape) {
  require(shape >= 0 && shape < kShapes, "data", "a drawn shape must be 0 to ", kShapes - 1, ": got ", shape);
  return kTable[shape];
}

/// Size, place and colours of a shape, as shares of the picture's sides and of the range of a channel.
struct Look {
  double span, left, top;  // the places are shares of the room that the shape leaves
  std::array<double, 3> ground, colour;
};

Look look_of(uint64_t seed) {
  const auto draw = [&](uint64_t choice) { return uniform_of_seed(derive_seed(seed, choice)); };
  Look look{.span = 0.6 + 0.3 * draw(0), .left = draw(1), .top = draw(2), .ground = {}, .colour = {}};
  for (uint64_t c = 0; c < 3; ++c) {
    look.ground[c] = 0.5 * draw(3 + c);
    const double darkest = look.ground[c] + 0.2;
    look.colour[c] = darkest + (1 - darkest) * draw(6 + c);
  }
  return look;
}

/// The way of a shape through the frames of its clip.
struct Motion {
  const char* direction;
  Point step;  // from a frame to the next, as shares of the picture's sides
};

Motion motion_of(uint64_t seed) {
  constexpr std::array<Motion, 4> kWays{{{"left", {-1, 0}}, {"right", {1, 0}}, {"up", {0, -1}}, {"down", {0, 1}}}};
  const uint64_t own = derive_seed(seed, "motion");
  Motion motion = kWays[derive_seed(own, 0) % kWays.size()];
  const double speed = (1 + uniform_of_seed(derive_seed(own, 1))) / 16;
  motion.step = {motion.step.x * speed, motion.step.y * speed};
  return motion;
}

/// Returns a place on an axis of `side` pixels after a move by `way` pixels. What spans `span` pixels from there leaves
/// at one end of the axis and returns at the other, out of sight. A way of 0 leaves each place that is in sight as it
/// is.
double moved(double place, double way, double span, double side) {
  const double cycle = side + span;
  return place + way - cycle * std::floor((place + way + span) / cycle);
}

/// Returns the share of the pixel at (x, y) that is inside the shape, whose frame has its centre at `centre` and is
/// 2 `radius` wide, all in pixels.
double coverage(const Shape& shape, Point centre, double radius, int64_t x, int64_t y) {
  int64_t inside = 0;
  for (int64_t i = 0; i < kSubpixels * kSubpixels; ++i) {
    const auto offset = [](int64_t step) { return (static_cast<double>(step) + 0.5) / kSubpixels; };
    const Point p{(static_cast<double>(x) + offset(i % kSubpixels) - centre.x) / radius,
                  (static_cast<double>(y) + offset(i / kSubpixels) - centre.y) / radius};
    inside += std::abs(p.x) <= 1 && std::abs(p.y) <= 1 && shape.contains(p);
  }
  return static_cast<double>(inside) / (kSubpixels * kSubpixels);
}

void check_drawn_size(int64_t width, int64_t height) {
  require(std::min(width, height) >= 1 && std::max(width, height) <= kMaxSide && width <= kMaxPixels / height, "data",
          "a drawn picture must have 1 to ", kMaxSide, " pixels in a row and a column and at most ", kMaxPixels,
          " in all: got ", width, " x ", height);
}

/// Returns the share of each pixel that is inside the shape, row by row, in a frame of its clip.
std::vector<double> coverages(int64_t shape, uint64_t seed, int64_t width, int64_t height, int64_t frame) {
  const Shape& form = shape_at(shape);
  check_drawn_size(width, height);
  const Look look = look_of(seed);
  const auto wide = static_cast<double>(width), high = static_cast<double>(height);
  const double span = look.span * std::min(wide, high);
  const Point step = motion_of(seed).step;
  const auto number = static_cast<double>(frame);
  const Point centre{span / 2 + moved((wide - span) * look.left, number * step.x * wide, span, wide),
                     span / 2 + moved((high - span) * look.top, number * step.y * high, span, high)};
  std::vector<double> shares;
  shares.reserve(static_cast<size_t>(width * height));
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) shares.push_back(coverage(form, centre, span / 2, x, y));
  return shares;
}

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kTable) names.emplace_back(shape.name);
  return names;
}

std::string shape_caption(int64_t shape) { return shape_at(shape).caption; }

std::string moving_shape_caption(int64_t shape, uint64_t seed) {
  const Shape& form = shape_at(shape);
  return concat(form.caption, " ", form.moves, " ", motion_of(seed).direction);
}

Picture draw_shape(int64_t shape, uint64_t seed, int64_t width, int64_t height) {
  return draw_moving_shape(shape, seed, width, height, 0);
}

Picture draw_shape_outline(int64_t shape, uint64_t seed, int64_t width, int64_t height) {
  const std::vector<double> shares = coverages(shape, seed, width, height, 0);
  const auto is_in = [&](int64_t x, int64_t y) {
    return x >= 0 && y >= 0 && x < width && y < height && shares[static_cast<size_t>(y * width + x)] >= 0.5;
  };
  Picture picture{width, height, std::vector<uint8_t>(width * height * 3)};
  uint8_t* out = picture.rgb.data();
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      const bool is_edge = is_in(x, y) && !(is_in(x - 1, y) && is_in(x + 1, y) && is_in(x, y - 1) && is_in(x, y + 1));
      for (int c = 0; c < 3; ++c) *out++ = is_edge ? 255 : 0;
    }
  return picture;
}

Picture draw_moving_shape(int64_t shape, uint64_t seed, int64_t width, int64_t height, int64_t frame) {
  constexpr int64_t kMaxFrame = int64_t{1} << 31;
  require(frame >= 0 && frame <= kMaxFrame, "data", "a frame of a drawn clip must be 0 to ", kMaxFrame, ": got ",
          frame);
  const std::vector<double> shares = coverages(shape, seed, width, height, frame);
  const Look look = look_of(seed);
  Picture picture{width, height, std::vector<uint8_t>(width * height * 3)};
  uint8_t* out = picture.rgb.data();
  for (const double share : shares)
    for (size_t c = 0; c < 3; ++c)
      *out++ = static_cast<uint8_t>(std::lround(255 * (look.ground[c] + (look.colour[c] - look.ground[c]) * share)));
  return picture;
}

std::optional<int64_t> parse_builtin_shapes(const std::string& path) {
  const size_t colon = path.find(':');
  const std::string name = path.substr(0, colon);
  std::error_code failed;
  if (name != kName) {
    const std::string hint = name.find('/') == std::string::npos ? did_you_mean(name, {kName}) : "";
    require(hint.empty() || std::filesystem::exists(path, failed), "data",
            "data.path must be a folder of images that exists, or ", kName, ": got ", path, hint);
    return std::nullopt;
  }
  if (colon == std::string::npos) return kDefaultCount;
  const std::string number = path.substr(colon + 1);
  const auto count = parse_id(number);
  require(count && *count >= 1 && *count <= kMaxCount, "data", "data.path = ", kName,
          ":N must name a number of pictures an epoch from 1 to ", kMaxCount, ": got ", path, ", did you mean `", kName,
          ":", count && *count > kMaxCount ? kMaxCount : kDefaultCount, "`?");
  return count;
}

int64_t held_out_shapes(int64_t count, double held_out) {
  return held_out > 0 ? std::max<int64_t>(1, std::llround(static_cast<double>(count) * held_out)) : 0;
}

uint64_t training_shape_seed(uint64_t sample) { return derive_seed(sample, "training shape"); }

uint64_t held_out_shape_seed(int64_t index) {
  return derive_seed(derive_seed(0, "held-out shapes"), static_cast<uint64_t>(index));
}

}  // namespace colossal::data
