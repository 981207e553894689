// Small folders in CIFAR-10's format, with images whose classes a model can learn.
#pragma once
#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace colossal::test {

/// Returns `count` records with the labels 0, 1, .. 9, 0, .. The image of label l has a bright band at height 3 l, on a
/// background that differs from image to image.
inline std::string cifar_records(int64_t count, int64_t first = 0) {
  std::string bytes;
  for (int64_t i = first; i < first + count; ++i) {
    const int64_t label = i % 10;
    bytes += static_cast<char>(label);
    for (int64_t channel = 0; channel < 3; ++channel)
      for (int64_t y = 0; y < 32; ++y)
        for (int64_t x = 0; x < 32; ++x)
          bytes += static_cast<char>(y / 3 == label ? 230 - 10 * channel : (i * 7 + x * (channel + 1) + y * 3) % 90);
  }
  return bytes;
}

inline void write_plain(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline void write_gzip(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb1");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

}  // namespace colossal::test
