#include "colossal/data/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "colossal/base/error.h"
#include "colossal/base/input_file.h"

namespace colossal::data {
namespace {

constexpr int64_t kPiece = 1 << 20;

struct Close {
  void operator()(gzFile file) const { gzclose_r(file); }
};

}  // namespace

std::string read_unpacked(const std::string& path, int64_t max_bytes) {
  const auto stored = InputFile::open(path);  // no pipe: nothing would end the wait for it
  if (!path.ends_with(".gz")) {
    require(stored->size() <= max_bytes, "data", path, " has more than ", max_bytes, " bytes");
    return stored->content();
  }
  const std::unique_ptr<gzFile_s, Close> file(gzopen(path.c_str(), "rbe"));
  require(file != nullptr, "data", "cannot open ", path, ": ", std::strerror(errno));
  std::string content;
  for (;;) {
    const size_t filled = content.size();
    const int64_t room = std::min(kPiece, max_bytes + 1 - static_cast<int64_t>(filled));
    content.resize(filled + room);
    const int got = gzread(file.get(), content.data() + filled, static_cast<unsigned>(room));
    int code = Z_OK;
    const std::string reason = gzerror(file.get(), &code);  // Z_BUF_ERROR: the file ends within the stream
    require(got >= 0 && code == Z_OK, "data", path, " is damaged or cut short (", reason, "); fetch it again");
    // zlib hands through what is not compressed at all.
    require(gzdirect(file.get()) == 0, "data", path, " is no gzip file though its name ends in .gz; fetch it again");
    content.resize(filled + got);
    require(static_cast<int64_t>(content.size()) <= max_bytes, "data", path, " has more than ", max_bytes,
            " bytes unpacked");
    if (got == 0) return content;
  }
}

}  // namespace colossal::data
