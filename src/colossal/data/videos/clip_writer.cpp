#include "colossal/data/videos/clip_writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"

namespace colossal::data {
namespace {

struct ClipKind {
  const char* ending;
  std::unique_ptr<ClipEncoder> (*make)(const ClipFormat& format, ByteSink sink);
};

constexpr std::array<ClipKind, 3> kClipKinds{{{".gif", encode_gif}, {".y4m", encode_y4m}, {".mp4", encode_mp4}}};

const ClipKind* kind_of_clip(std::string_view path) {
  const auto* found = std::find_if(kClipKinds.begin(), kClipKinds.end(),
                                   [&](const ClipKind& kind) { return has_ending(path, kind.ending); });
  return found == kClipKinds.end() ? nullptr : found;
}

}  // namespace

bool has_clip_ending(std::string_view path) { return kind_of_clip(path) != nullptr; }

Rate rate_of(double fps) {
  constexpr int64_t kMost = 65535;  // of both numbers, which MPEG-4 can store
  constexpr double kExact = 1e-9;
  for (const Rate& unit : {Rate{1, 1}, Rate{1000, 1001}}) {
    const double frames = std::round(fps * static_cast<double>(unit.seconds) / static_cast<double>(unit.frames));
    const Rate rate{static_cast<int64_t>(frames) * unit.frames, unit.seconds};
    if (std::abs(static_cast<double>(rate.frames) / static_cast<double>(rate.seconds) - fps) < 1e-5 * fps) return rate;
  }
  // The continued fraction of the rate. Each of its steps is nearer than the one before.
  Rate before{1, 0}, rate{static_cast<int64_t>(fps), 1};
  double rest = fps - std::floor(fps);
  while (std::abs(static_cast<double>(rate.frames) / static_cast<double>(rate.seconds) - fps) > kExact * fps) {
    const double term = std::floor(1 / rest);
    if (!(term <= static_cast<double>(kMost))) break;
    const auto times = static_cast<int64_t>(term);
    const Rate next{times * rate.frames + before.frames, times * rate.seconds + before.seconds};
    if (std::max(next.frames, next.seconds) > kMost) break;
    before = std::exchange(rate, next);
    rest = 1 / rest - term;
  }
  return rate.frames > 0 ? rate : Rate{1, std::llround(std::clamp(1 / fps, 1.0, static_cast<double>(kMost)))};
}

ClipWriter::ClipWriter(const std::string& path, const ClipFormat& format) : path_(path), format_(format), file_(path) {
  const ClipKind* kind = kind_of_clip(path);
  require(kind != nullptr, "data", "a clip must be written as .gif, .y4m or .mp4: got ", path);
  require(std::min(format.width, format.height) >= 1 && std::max(format.width, format.height) <= kMaxSide, "data",
          "a clip must have 1 to ", kMaxSide, " pixels in a row and a column: got ", format.width, " x ",
          format.height);
  require(format.fps > 0 && format.fps <= 1000, "data", "a clip must have a rate above 0 and at most 1000 frames a ",
          "second: got ", format.fps);
  encoder_ = kind->make(format, [this](std::string_view bytes) { file_.write(bytes); });
}

void ClipWriter::add(const Picture& frame) {
  require(frame.width == format_.width && frame.height == format_.height &&
              static_cast<int64_t>(frame.rgb.size()) == 3 * frame.width * frame.height,
          "data", "all frames of ", path_, " must have ", format_.width, " x ", format_.height, " pixels: got ",
          frame.width, " x ", frame.height, " in frame ", frames_);
  encoder_->add(frame);
  ++frames_;
}

void ClipWriter::finish() {
  require(frames_ > 0, "data", "a clip must have frames: got none for ", path_);
  encoder_->finish();
  file_.commit();
}

}  // namespace colossal::data
