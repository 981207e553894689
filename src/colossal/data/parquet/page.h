// The pages of a Parquet file: their compression, and the encoding of levels and dictionary indices.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace colossal::data {

/// Returns the unpacked content of a page, which has `size` bytes. `codec` is 0 (none), 1 (Snappy), 2 (gzip) or 6
/// (Zstandard).
/// Errors ("data"): another codec, damaged data, another size than `size`, a size of more than 256 MiB.
std::string unpack_page(std::string_view packed, int64_t codec, int64_t size);

/// A reader of numbers of `width` bits, in Parquet's hybrid encoding: runs of one number (RLE) and bit-packed numbers.
class ParquetRuns {
 public:
  ParquetRuns() = default;
  /// `bytes` must outlive the reader. Errors ("data"): a width below 0 or above 32.
  ParquetRuns(std::string_view bytes, int width);
  /// Returns the next number. Errors ("data"): there is none.
  uint32_t next();

 private:
  void begin_run();
  std::string_view bytes_, packed_;
  int width_ = 0;
  int64_t left_ = 0, bit_ = 0;
  bool is_packed_ = false;
  uint32_t value_ = 0;
};

}  // namespace colossal::data
