#include <webp/decode.h>

#include "colossal/base/error.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/pictures/picture_header.h"

namespace colossal::data {

bool reads_webp() { return true; }

Picture decode_webp(std::string_view bytes, const std::string& name, int& orientation) {
  const PictureHeader header = read_picture_header(bytes_of(bytes), name);
  require(header.format == PictureFormat::Webp, "data", name, " is not a WebP file");
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  int width = 0, height = 0;
  const bool is_sized =
      WebPGetInfo(data, bytes.size(), &width, &height) != 0 && width == header.width && height == header.height;
  require(is_sized, "data", name, " cannot be read as WebP: its headers are damaged");
  Picture picture{header.width, header.height, std::vector<uint8_t>(header.width * header.height * 3)};
  const bool done = WebPDecodeRGBInto(data, bytes.size(), picture.rgb.data(), picture.rgb.size(), width * 3) != nullptr;
  require(done, "data", name, " cannot be read as WebP: it is damaged or cut short");
  orientation = header.orientation;
  return picture;
}

}  // namespace colossal::data
