// Encoded pictures of one colour, and tar files, for tests of pictures with captions.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "colossal/data/pictures/picture.h"

namespace colossal::data::test_pictures {

inline std::string png(int64_t width, int64_t height, uint8_t value = 9) {
  return encode_png({width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3), value)});
}

/// A JPEG up to its first scan, with EXIF orientation 6: 30 x 20 pixels as stored, 20 x 30 upright.
inline std::string turned_jpeg() {
  std::string bytes("\xff\xd8\xff\xe1\x00\x22", 6);
  bytes += std::string("Exif\0\0MM\0\x2a\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0", 32);
  bytes += std::string("\xff\xc0\0\x0b\x08\0\x14\0\x1e\1\1\x11\0\xff\xda\0\x08\1\1\0\0\x3f\0", 23);
  return bytes;
}

/// One member of a tar (POSIX.1-1988): its header and its content, in blocks of 512 bytes. `kind` is '0' for files.
inline std::string tar_member(const std::string& name, const std::string& content, char kind = '0') {
  std::string header(512, '\0');
  const auto put = [&](size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  char size[16];
  std::snprintf(size, sizeof size, "%011zo", content.size());
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, size);
  put(136, "00000000000");
  put(148, "        ");  // the checksum counts as blanks
  header[156] = kind;
  put(257, std::string("ustar\00000", 8));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<uint8_t>(c);
  std::snprintf(size, sizeof size, "%06o", sum);
  put(148, std::string(size) + std::string("\0 ", 2));
  std::string bytes = header + content;
  bytes.resize((bytes.size() + 511) / 512 * 512, '\0');
  return bytes;
}

/// What a member's name may not fit into: a record of pax with the path of the next member (POSIX.1-2001).
inline std::string pax_path(const std::string& name) {
  size_t length = name.size() + 7;  // with " path=" and the end of the line
  length += std::to_string(length + std::to_string(length).size()).size();
  return tar_member("pax", std::to_string(length) + " path=" + name + "\n", 'x');
}

inline std::string tar(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string bytes;
  for (const auto& [name, content] : members) bytes += tar_member(name, content);
  return bytes + std::string(1024, '\0');
}

}  // namespace colossal::data::test_pictures
