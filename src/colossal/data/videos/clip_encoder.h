// The formats in which clips are written, one encoder each. ClipWriter chooses among them.
//
//   const auto gif = data::encode_gif({.width = 64, .height = 48, .fps = 8}, [&](auto piece) { bytes += piece; });
//   for (const data::Picture& frame : frames) gif->add(frame);
//   gif->finish();
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "colossal/data/pictures/picture.h"

namespace colossal::data {

/// The size and the rate, which all frames of a clip share.
struct ClipFormat {
  int64_t width = 0, height = 0;  ///< pixels; must be set
  double fps = 0;                 ///< frames a second; must be set (above 0)
};

/// A function that appends bytes to a file.
using ByteSink = std::function<void(std::string_view)>;

/// A writer of one format. The caller adds frames of the format's size, at least one, and then finishes it.
class ClipEncoder {
 public:
  virtual ~ClipEncoder() = default;
  virtual void add(const Picture& frame) = 0;
  /// Gives the sink what comes after the last frame.
  virtual void finish() = 0;
};

/// A rate as a fraction: `frames` in `seconds`.
struct Rate {
  int64_t frames = 0, seconds = 1;
};

/// Returns the fraction of a rate. It is exact for whole numbers, for those times 1000/1001 (23.976 is 24000/1001)
/// and for fractions of small numbers, such as 12.5 and 0.3333333333. Others are the nearest of its continued fraction
/// whose numbers fit 16 bits.
Rate rate_of(double fps);

/// The most frames a second of a GIF: programs show images of less than 2 hundredths of a second for 10.
constexpr double kMostGifRate = 50;

/// The fewest: an image of a GIF is shown for at most 65535 hundredths of a second.
constexpr double kLeastGifRate = 0.01;

/// GIF, a palette a frame. Each frame is given to the sink at once.
/// Errors ("data"): a rate outside [kLeastGifRate, kMostGifRate].
std::unique_ptr<ClipEncoder> encode_gif(const ClipFormat& format, ByteSink sink);

/// y4m, without compression. Each frame is given to the sink at once.
std::unique_ptr<ClipEncoder> encode_y4m(const ClipFormat& format, ByteSink sink);

/// MP4 with H.264 or, if FFmpeg's libraries have no encoder for it, MPEG-4. The file is kept in memory until finish(),
/// because its table is completed last. Errors ("data"): the build has no libav, or it is not installed; an odd side.
std::unique_ptr<ClipEncoder> encode_mp4(const ClipFormat& format, ByteSink sink);

}  // namespace colossal::data
