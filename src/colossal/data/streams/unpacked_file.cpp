#include "colossal/data/streams/unpacked_file.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/input_file.h"

namespace colossal::data {
namespace {

constexpr int64_t kPiece = 1 << 18;
constexpr int kMaxWindowLog = 27;  // log2 of bytes, the default limit of zstd

/// The stored bytes of a file, held one piece at a time.
class StoredBytes {
 public:
  explicit StoredBytes(const std::string& path) : file_(InputFile::open(path)), piece_(kPiece) {}

  /// Returns true if bytes are left. data() and size() then describe the next bytes of the file.
  bool has_more() {
    if (begin_ < end_) return true;
    const int64_t count = std::min(kPiece, file_->size() - position_);
    if (count <= 0) return false;
    file_->read(position_, count, piece_.data());
    position_ += count;
    begin_ = 0;
    end_ = count;
    return true;
  }
  const char* data() const { return piece_.data() + begin_; }
  int64_t size() const { return end_ - begin_; }
  void pass(int64_t count) { begin_ += count; }
  /// Skips `count` bytes, or all that are left. Returns the number of bytes skipped.
  int64_t jump(int64_t count) {
    const int64_t held = std::min(count, size()), further = std::min(count - held, file_->size() - position_);
    pass(held);
    position_ += further;
    return held + further;
  }
  const std::string& path() const { return file_->path(); }

 private:
  std::shared_ptr<const InputFile> file_;
  std::vector<char> piece_;
  int64_t position_ = 0, begin_ = 0, end_ = 0;
};

class PlainFile final : public UnpackedFile {
 public:
  explicit PlainFile(const std::string& path) : bytes_(path) {}
  int64_t read(char* out, int64_t count) override {
    if (!bytes_.has_more()) return 0;
    const int64_t got = std::min(count, bytes_.size());
    std::copy_n(bytes_.data(), got, out);
    bytes_.pass(got);
    return got;
  }
  int64_t skip(int64_t count) override { return bytes_.jump(count); }

 private:
  StoredBytes bytes_;
};

class GzipFile final : public UnpackedFile {
 public:
  explicit GzipFile(const std::string& path) : bytes_(path) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    require(inflateInit2(&stream_, kGzipOnly) == Z_OK, "data", "no memory to unpack ", path);
  }
  ~GzipFile() override { inflateEnd(&stream_); }

  int64_t read(char* out, int64_t count) override {
    for (;;) {
      if (!inside_ && !begin_member()) return 0;
      const bool ends = !bytes_.has_more();  // zlib may still hold output that did not fit before
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes_.data()));  // zlib only reads from next_in
      stream_.avail_in = static_cast<uInt>(ends ? 0 : bytes_.size());
      stream_.next_out = reinterpret_cast<Bytef*>(out);
      stream_.avail_out = static_cast<uInt>(std::min(count, kPiece));
      const int64_t room = stream_.avail_out;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (!ends) bytes_.pass(bytes_.size() - stream_.avail_in);
      if (code == Z_STREAM_END) inside_ = false, ++members_;
      const int64_t got = room - stream_.avail_out;
      if (got > 0) return got;  // the next call finds the damage after these bytes again
      require(!ends || !inside_, "data", bytes_.path(),
              " is damaged or cut short (unexpected end of stream); fetch it again");
      require(code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR, "data", bytes_.path(),
              " is damaged or cut short (", stream_.msg != nullptr ? stream_.msg : "corrupt stream",
              "); fetch it again");
    }
  }

 private:
  /// Begins the next member. Returns false if there is none; only zeros may follow the last member.
  bool begin_member() {
    while (members_ > 0 && bytes_.has_more() && *bytes_.data() == 0) bytes_.pass(1), padded_ = true;
    const bool ends = !bytes_.has_more();
    require(!ends || members_ > 0, "data", bytes_.path(), " is not a gzip file: it is empty; fetch it again");
    if (ends) return false;
    const bool is_gzip = *bytes_.data() == '\x1f' && !padded_;
    require(is_gzip || members_ > 0, "data", bytes_.path(),
            " is not a gzip file, although its name ends in .gz; fetch it again");
    require(is_gzip, "data", bytes_.path(),
            " is damaged or cut short (trailing bytes are not a gzip member); fetch it again");
    inflateReset(&stream_);
    return inside_ = true;
  }

  StoredBytes bytes_;
  z_stream stream_{};
  bool inside_ = false, padded_ = false;
  int64_t members_ = 0;
};

class ZstdFile final : public UnpackedFile {
 public:
  explicit ZstdFile(const std::string& path) : bytes_(path), stream_(ZSTD_createDStream()) {
    require(stream_ != nullptr, "data", "no memory to unpack ", path);
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
    wanted_ = ZSTD_initDStream(stream_.get());
  }

  int64_t read(char* out, int64_t count) override {
    ZSTD_outBuffer to{out, static_cast<size_t>(count), 0};
    for (;;) {
      const bool ends = !bytes_.has_more();
      if (ends && !inside_) {
        require(frames_ > 0, "data", bytes_.path(), " is not a zstd file: it is empty; fetch it again");
        return 0;
      }
      // zstd gets the bytes that it requests next, which are one block. It gets none while it holds back output of the
      // last block for lack of room. Otherwise it would continue to damage after that block, and would not report how
      // much it had unpacked before the damage.
      const size_t size = ends || (inside_ && is_full_) ? 0 : std::min<size_t>(wanted_, bytes_.size());
      ZSTD_inBuffer from{bytes_.data(), size, 0};
      const bool at_start = !inside_;
      const size_t left = ZSTD_decompressStream(stream_.get(), &to, &from);
      if (ZSTD_isError(left)) fail(left, at_start);
      bytes_.pass(static_cast<int64_t>(from.pos));
      is_full_ = to.pos == to.size;
      inside_ = left != 0;
      frames_ += inside_ ? 0 : 1;
      wanted_ = inside_ ? left : kFrameStart;
      if (to.pos > 0) return static_cast<int64_t>(to.pos);
      require(!ends, "data", bytes_.path(), " is damaged or cut short (unexpected end of frame); fetch it again");
    }
  }

 private:
  static constexpr size_t kFrameStart = 5;  // bytes of the magic number and the descriptor
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };

  [[noreturn]] void fail(size_t code, bool at_start) const {
    if (at_start && frames_ == 0)
      throw Error("data", concat(bytes_.path(), " is not a zstd file, although its name ends in .zst (",
                                 ZSTD_getErrorName(code), "); fetch it again"));
    throw Error("data", concat(bytes_.path(), " is damaged or cut short (",
                               at_start ? "trailing bytes are not a zstd frame" : ZSTD_getErrorName(code),
                               "); fetch it again"));
  }

  StoredBytes bytes_;
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  size_t wanted_ = 0;  // number of bytes that zstd requests next
  bool inside_ = false, is_full_ = false;
  int64_t frames_ = 0;
};

}  // namespace

bool is_packed(std::string_view path) { return has_ending(path, ".gz") || has_ending(path, ".zst"); }

std::unique_ptr<UnpackedFile> UnpackedFile::open(const std::string& path) {
  if (has_ending(path, ".gz")) return std::make_unique<GzipFile>(path);
  if (is_packed(path)) return std::make_unique<ZstdFile>(path);
  return std::make_unique<PlainFile>(path);
}

int64_t UnpackedFile::skip(int64_t count) {
  std::vector<char> dropped(std::min(count, kPiece));
  int64_t skipped = 0;
  while (skipped < count) {
    const int64_t got = read(dropped.data(), std::min(count - skipped, kPiece));
    if (got == 0) break;
    skipped += got;
  }
  return skipped;
}

std::string read_unpacked(const std::string& path, int64_t max_bytes) {
  const auto file = UnpackedFile::open(path);
  std::string content;
  for (;;) {
    const size_t filled = content.size();
    const int64_t room = std::min(kPiece, max_bytes + 1 - static_cast<int64_t>(filled));
    content.resize(filled + room);
    const int64_t got = file->read(content.data() + filled, room);
    content.resize(filled + got);
    require(static_cast<int64_t>(content.size()) <= max_bytes, "data", path, " has more than ", max_bytes,
            " bytes unpacked");
    if (got == 0) return content;
  }
}

}  // namespace colossal::data
