// Stands in for libav_reader.cpp and libav_writer.cpp in a build without FFmpeg's libraries.
#include "colossal/base/error.h"
#include "colossal/data/videos/clip_encoder.h"
#include "colossal/data/videos/video.h"

namespace colossal::data {

bool reads_videos() { return false; }

std::unique_ptr<VideoReader> open_by_libav(const PictureBytes&, const std::string& name) {
  throw Error("data",
              concat(name, " is neither GIF nor y4m, and this build reads no other videos; install ",
                     "libavformat-dev, libavcodec-dev and libswscale-dev and build again, or convert the file"));
}

std::unique_ptr<ClipEncoder> encode_mp4(const ClipFormat&, ByteSink) {
  throw Error("data",
              "this build writes no MP4; install libavformat-dev, libavcodec-dev and libswscale-dev and build "
              "again, or write .gif or .y4m");
}

}  // namespace colossal::data
