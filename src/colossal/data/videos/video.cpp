#include "colossal/data/videos/video.h"

#include <algorithm>
#include <array>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"

namespace colossal::data {

void VideoReader::set_size(const PictureSize& upright) {
  const auto [width, height] = upright;
  require(std::min(width, height) >= 1 && std::max(width, height) <= kMaxSide && width <= kMaxPixels / height, "data",
          name_, " has frames of ", to_string(upright), " pixels; there must be 1 to ", kMaxPixels, ", and at most ",
          kMaxSide, " in a row or column");
  size_ = upright;
}

void VideoReader::set_seconds(double seconds) {
  require(seconds > 0, "data", name_, " has no frames");
  seconds_ = seconds;
}

std::unique_ptr<VideoReader> open_video(const PictureBytes& bytes, const std::string& name) {
  constexpr std::string_view kGif = "GIF8", kY4m = "YUV4MPEG2";
  require(bytes.size > 0, "data", name, " is empty");
  std::string start(static_cast<size_t>(std::min<int64_t>(bytes.size, kY4m.size())), '\0');
  bytes.read(0, static_cast<int64_t>(start.size()), start.data());
  if (start.starts_with(kGif)) return open_gif(bytes, name);
  if (start.starts_with(kY4m)) return open_y4m(bytes, name);
  return open_by_libav(bytes, name);
}

bool has_video_ending(std::string_view path) {
  constexpr std::array<const char*, 7> kEndings = {".mp4", ".webm", ".mkv", ".mov", ".avi", ".gif", ".y4m"};
  return std::any_of(kEndings.begin(), kEndings.end(), [&](const char* ending) { return has_ending(path, ending); });
}

Picture frame_at(VideoReader& video, double seconds) {
  constexpr double kMostRounded = 1;
  while (video.time().end <= seconds + kStampError) {
    if (video.next()) continue;
    const double end = video.time().end;
    require(end > 0 && seconds < end + kMostRounded, "data", video.name(), " is cut short: its frames end after ", end,
            " seconds, and one at ", seconds, " is needed; its headers promise ", video.seconds());
    break;
  }
  return video.picture();
}

void read_clip(VideoReader& video, const ClipPart& part, const std::function<void(const Picture&)>& take) {
  const auto time_of = [&](int64_t frame) { return static_cast<double>(part.start + frame) / part.fps; };
  video.seek(time_of(0));
  for (int64_t frame = 0; frame < part.frames; ++frame) take(frame_at(video, time_of(frame)));
}

}  // namespace colossal::data
