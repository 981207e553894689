// Videos, frame by frame: GIF and y4m files and, in a build with FFmpeg's libraries, what those read (MP4, WebM, ...).
// The readers accept files from untrusted sources.
//
//   const auto file = InputFile::open("rain.mp4");
//   const auto video = data::open_video(data::bytes_of(*file), file->path());
//   const data::Picture second = data::frame_at(*video, 1.0);   // what a player shows one second after the start
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "colossal/data/pictures/buckets.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/pictures/picture_header.h"

namespace colossal::data {

/// The time in which a frame is shown, in seconds from the start of its video. `end` is not within.
struct FrameTime {
  double begin = 0, end = 0;
};

/// A video whose frames are read one after the other. Before the first next() there is no frame.
/// Memory: two decoded frames, and what the decoder refers to. The file stays on the disk.
/// Thread safety: one thread at a time calls the members.
class VideoReader {
 public:
  virtual ~VideoReader() = default;
  VideoReader(const VideoReader&) = delete;
  VideoReader& operator=(const VideoReader&) = delete;

  const std::string& name() const { return name_; }
  const PictureSize& size() const { return size_; }  ///< of the upright frames
  /// Returns the length of the video as the headers of its file say it, above 0.
  double seconds() const { return seconds_; }

  /// Moves to the next frame. Returns false at the end of the video.
  /// Errors ("data"), with the file's name: the file is damaged or cut short. ("file"): it cannot be read.
  virtual bool next() = 0;
  /// Returns the time of this frame, by the time stamps of the file.
  virtual FrameTime time() const = 0;
  /// Returns this frame, turned as the file says. Errors: as next().
  virtual Picture picture() const = 0;
  /// Moves to the frame that is shown at a time, or before it, so that next() reaches it. Errors: as next().
  virtual void seek(double seconds) = 0;

 protected:
  explicit VideoReader(std::string name) : name_(std::move(name)) {}
  /// Sets what the headers say. Errors ("data"), with the file's name: no pixels, or too many (kMaxPixels, kMaxSide).
  void set_size(const PictureSize& upright);
  /// As set_size(). Errors ("data"), with the file's name: the video has no frames, and so no length above 0.
  void set_seconds(double seconds);

 private:
  std::string name_;
  PictureSize size_;
  double seconds_ = 0;
};

/// Opens a video; the bytes decide the format. `name` names the file in messages. What `bytes` reads must outlive the
/// result.
/// Errors ("data"), with the file's name: the headers are damaged; the video has no frames; it is neither GIF nor y4m
/// and this build reads no other videos, or their libraries are not installed. ("file"): it cannot be read.
/// Cost: reads the headers. Of a GIF and of a y4m file these are the headers of all frames.
std::unique_ptr<VideoReader> open_video(const PictureBytes& bytes, const std::string& name);

/// Returns true if a name ends as videos do: .mp4, .webm, .mkv, .mov, .avi, .gif or .y4m, in any case.
bool has_video_ending(std::string_view path);

/// Returns true if this build reads videos other than GIF and y4m, and their libraries are installed.
bool reads_videos();

/// Time stamps of files may be this many seconds late, because some formats round them to milliseconds.
constexpr double kStampError = 0.001;

/// Moves forward to the frame that is shown at a time, and returns it. A time at most a second after the end of the
/// last frame has that frame, because headers may round lengths up.
/// Errors: as VideoReader::next(); the video ends before that time.
Picture frame_at(VideoReader& video, double seconds);

/// A part of a video: `frames` frames at the rate `fps`, from the one with the number `start`.
struct ClipPart {
  int64_t start = 0, frames = 1;
  double fps = 24;
};

/// Calls `take` with each frame of a part in its order: those that are shown at start / fps, (start + 1) / fps, ...
/// Errors: as frame_at(). Memory: one frame at a time.
void read_clip(VideoReader& video, const ClipPart& part, const std::function<void(const Picture&)>& take);

/// Openers of each format, for open_video().
std::unique_ptr<VideoReader> open_gif(const PictureBytes& bytes, const std::string& name);
std::unique_ptr<VideoReader> open_y4m(const PictureBytes& bytes, const std::string& name);
std::unique_ptr<VideoReader> open_by_libav(const PictureBytes& bytes, const std::string& name);

}  // namespace colossal::data
