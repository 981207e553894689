// Measures how many frames per second are decoded from clips of a video, with one thread. Usage: colossal_video_bench
// FILE FRAMES FPS SECONDS. Clips of FRAMES frames follow each other; for each one the file is opened again. Prints
// frames per second.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "colossal/base/input_file.h"
#include "colossal/data/videos/video.h"

namespace colossal::data {
namespace {

double frames_a_second(const std::string& path, int64_t frames, double fps, double least) {
  const auto file = InputFile::open(path);
  int64_t made = 0, start = 0, first_bytes = 0;
  const auto decode_clip = [&] {
    const auto video = open_video(bytes_of(*file), file->path());
    const auto all = static_cast<int64_t>(std::llround(video->seconds() * fps));
    if (start + frames > all) start = 0;
    read_clip(*video, {.start = start, .frames = frames, .fps = fps}, [&](const Picture& picture) {
      first_bytes += picture.rgb.front();  // so that no frame is left out
      ++made;
    });
    start += frames;
  };
  decode_clip();  // loads the libraries
  made = 0;
  const auto began = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  while (spent() < least) decode_clip();
  return first_bytes < 0 ? 0 : static_cast<double>(made) / spent();
}

}  // namespace
}  // namespace colossal::data

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "usage: %s FILE FRAMES FPS SECONDS\n", arguments[0]);
    return 2;
  }
  try {
    std::printf("%.1f\n", colossal::data::frames_a_second(arguments[1], std::atoll(arguments[2]),
                                                          std::atof(arguments[3]), std::atof(arguments[4])));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
