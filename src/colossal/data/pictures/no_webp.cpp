// Stands in for webp.cpp in a build without libwebp.
#include "colossal/base/error.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/pictures/picture_header.h"

namespace colossal::data {

bool reads_webp() { return false; }

Picture decode_webp(std::string_view bytes, const std::string& name, int&) {
  require_decoder(read_picture_header(bytes_of(bytes), name), name);
  throw Error("data", concat(name, " is not a WebP file"));
}

}  // namespace colossal::data
