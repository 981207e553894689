// Clips as files: GIF, y4m and, in a build with FFmpeg's libraries, MP4.
//
//   data::ClipWriter clip("out.gif", {.width = 64, .height = 48, .fps = 8});
//   for (const data::Picture& frame : frames) clip.add(frame);   // written at once, so a clip needs no memory
//   clip.finish();
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "colossal/base/file.h"
#include "colossal/data/videos/clip_encoder.h"

namespace colossal::data {

/// A file that gets the frames of a clip one by one. Without finish() nothing is left at its path (AtomicFile).
///
/// The ending of the path decides the format. A GIF has one image a frame, shown for hundredths of a second whose sums
/// keep the rate; each has a palette of its own, exact up to 256 colours and by median cut (Heckbert, SIGGRAPH 1982)
/// above. A y4m file has 8-bit brightness and colour of each pixel. An MP4 file is compressed with loss.
/// Errors ("data"): the path has another ending; no pixels, more than kMaxSide in a row or column, or a rate that is
///                  not above 0 and at most 1000 frames a second; .gif of a rate outside [kLeastGifRate, kMostGifRate];
///                  .mp4 with an odd side, or where FFmpeg's libraries are missing. ("file"): those of AtomicFile.
class ClipWriter {
 public:
  ClipWriter(const std::string& path, const ClipFormat& format);
  ClipWriter(const ClipWriter&) = delete;
  ClipWriter& operator=(const ClipWriter&) = delete;

  /// Writes the next frame. Errors ("data"): it has another size.
  void add(const Picture& frame);
  /// Completes the file. Errors ("data"): there are no frames.
  void finish();

 private:
  std::string path_;
  ClipFormat format_;
  AtomicFile file_;
  std::unique_ptr<ClipEncoder> encoder_;
  int64_t frames_ = 0;
};

/// Returns true if ClipWriter has a format for the ending of a path: .gif, .y4m or .mp4, in any case.
bool has_clip_ending(std::string_view path);

}  // namespace colossal::data
