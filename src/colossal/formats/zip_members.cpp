// What the readers of zip files with and without libzip have in common.
#include <algorithm>
#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/input_file.h"
#include "colossal/base/json_file.h"
#include "colossal/formats/zip_file.h"

namespace colossal::formats {

bool is_zip(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return false;
  try {
    const std::string start = InputFile::open(path)->start(4);
    return start == "PK\x03\x04" || start == "PK\x05\x06";  // the second: a file without members
  } catch (const Error&) {
    return false;
  }
}

const ZipMember* ZipFile::find(const std::string& name) const {
  const auto found =
      std::find_if(members_.begin(), members_.end(), [&](const ZipMember& member) { return member.name == name; });
  return found != members_.end() ? &*found : nullptr;
}

std::string ZipFile::content(const ZipMember& member, uint64_t max_bytes) const {
  require(member.size <= max_bytes, "zip", path_, ": ", printable(member.name), " may have at most ", max_bytes,
          " bytes: got ", member.size);
  std::string bytes(member.size, '\0');
  read(member, 0, member.size, bytes.data());
  return bytes;
}

}  // namespace colossal::formats
