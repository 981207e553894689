#include "colossal/protein/text_lines.h"

#include <zlib.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/file.h"

namespace colossal::protein {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 32;
constexpr std::string_view kGzipStart = "\x1f\x8b", kUtf8Mark = "\xef\xbb\xbf";

/// A stream of zlib that reads gzip alone.
class Inflater {
 public:
  Inflater(std::string_view packed, const std::string& path, const char* component)
      : rest_(packed), path_(path), component_(component) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    require(inflateInit2(&stream_, kGzipOnly) == Z_OK, component, "no memory to unpack ", path);
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  /// Returns the content of all members. Zeros may follow the last one.
  std::string content() {
    std::string out;
    do {
      inflateReset(&stream_);
      unpack_member(out);
      rest_.remove_prefix(std::min(rest_.find_first_not_of('\0'), rest_.size()));
    } while (rest_.starts_with(kGzipStart));
    require(rest_.empty(), component_, path_, " is damaged: other bytes follow its gzip members; fetch it again");
    return out;
  }

 private:
  void unpack_member(std::string& out) {
    constexpr size_t kPiece = size_t{1} << 18;
    for (int code = Z_OK; code != Z_STREAM_END;) {
      const size_t given = std::min(rest_.size(), size_t{1} << 30), begin = out.size();
      out.resize(begin + kPiece);
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest_.data()));  // zlib only reads from next_in
      stream_.avail_in = static_cast<uInt>(given);
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + begin);
      stream_.avail_out = static_cast<uInt>(kPiece);
      code = inflate(&stream_, Z_NO_FLUSH);
      rest_.remove_prefix(given - stream_.avail_in);
      const bool is_stuck = stream_.avail_out == kPiece && rest_.empty();
      out.resize(begin + kPiece - stream_.avail_out);
      require((code == Z_OK && !is_stuck) || code == Z_STREAM_END, component_, path_,
              " is damaged or cut short (its gzip data end too early or are invalid); fetch it again");
      require(static_cast<int64_t>(out.size()) <= kMaxBytes, component_, path_,
              " must have at most 4 GiB of text; split it");
    }
  }

  z_stream stream_{};
  std::string_view rest_;
  const std::string& path_;
  const char* component_;
};

}  // namespace

TextFile read_text(const std::string& path, const char* component) {
  TextFile file{path, read_file(path, kMaxBytes)};
  if (file.bytes.starts_with(kGzipStart)) file.bytes = Inflater(file.bytes, path, component).content();
  if (file.bytes.starts_with(kUtf8Mark)) file.bytes.erase(0, kUtf8Mark.size());
  return file;
}

bool TextLines::next() {
  const std::string_view bytes = file_.bytes;
  if (position_ >= bytes.size()) return false;
  const size_t end = std::min(bytes.find_first_of("\r\n", position_), bytes.size());
  line_ = bytes.substr(position_, end - position_);
  position_ = end + 1;
  if (bytes.substr(std::min(end, bytes.size()), 2) == "\r\n") ++position_;
  ++number_;
  return true;
}

std::string TextLines::place() const { return place_of(file_.path, number_); }

std::string place_of(const std::string& path, int64_t line) { return concat(path, ":", line); }

std::string shown(char character) {
  if (character > ' ' && character <= '~') return std::string("`") + character + "`";
  return concat("byte ", static_cast<int>(static_cast<unsigned char>(character)));
}

std::string_view first_word(std::string_view line) {
  line = trimmed(line);
  return line.substr(0, std::min(line.find_first_of(" \t"), line.size()));
}

std::string_view trimmed(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t") + 1 - begin);
}

}  // namespace colossal::protein
