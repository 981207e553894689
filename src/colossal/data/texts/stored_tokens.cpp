#include "colossal/data/texts/stored_tokens.h"

#include <algorithm>
#include <cstring>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"

namespace colossal::data {
namespace {

// A sparse file may claim more bytes. Products of this limit and kPieces must fit int64_t.
constexpr int64_t kMaxStoredBytes = int64_t{1} << 56;
constexpr int64_t kPieces = 64, kPieceBytes = 16 << 10;  // 1 MiB in all, as much as of the largest file in memory

template <class Stored>
void widen(const char* bytes, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    Stored token;
    // The copy is right because every supported machine is little-endian, as the file is.
    std::memcpy(&token, bytes + i * static_cast<int64_t>(sizeof token), sizeof token);
    out[i] = token;
  }
}

}  // namespace

StoredTokens::StoredTokens(const std::string& path, int width) : name_(path), width_(width) {
  const auto file = InputFile::open(path);
  require(file->size() % width == 0, "data", path, " must hold whole tokens of ", width, " bytes: got ", file->size(),
          " bytes");
  require(file->size() <= kMaxStoredBytes, "data", path, " must have at most 2^56 bytes: got ", file->size());
  count_ = file->size() / width;
  if (file->size() <= kKept)
    memory_ = std::make_shared<const std::string>(file->content());
  else
    file_ = file;
  describe(file_ != nullptr);
}

StoredTokens::StoredTokens(std::string name, std::string bytes, int width)
    : name_(std::move(name)),
      width_(width),
      count_(static_cast<int64_t>(bytes.size()) / width),
      memory_(std::make_shared<const std::string>(std::move(bytes))) {
  describe(false);
}

StoredTokens StoredTokens::of_text(std::string name, std::string text) {
  StoredTokens stored(std::move(name), std::move(text), 1);
  if (stored.count_ > kKept) stored.describe(true);
  return stored;
}

void StoredTokens::read(int64_t begin, int64_t count, int64_t* out) const {
  std::string copied;
  if (file_) {
    copied.resize(static_cast<size_t>(count * width_));
    file_->read(begin * width_, count * width_, copied.data());
  }
  const char* bytes = file_ ? copied.data() : memory_->data() + begin * width_;
  if (width_ == 1)
    widen<uint8_t>(bytes, count, out);
  else if (width_ == 2)
    widen<uint16_t>(bytes, count, out);
  else
    widen<uint32_t>(bytes, count, out);
}

void StoredTokens::describe(bool in_pieces) {
  const int64_t size = count_ * width_;
  Checksum sum;
  if (!in_pieces) sum.update(memory_->data(), memory_->size());
  std::string piece(kPieceBytes, '\0');
  for (int64_t i = 0; in_pieces && i < kPieces; ++i) {
    const int64_t begin = (size - kPieceBytes) * i / (kPieces - 1);
    if (file_)
      file_->read(begin, kPieceBytes, piece.data());
    else
      memory_->copy(piece.data(), kPieceBytes, static_cast<size_t>(begin));
    sum.update(piece.data(), piece.size());
  }
  description_ = concat(size, " bytes with checksum ", sum.hex().substr(0, 16));
}

}  // namespace colossal::data
