// The pages of a Parquet file: how they are packed and how values lie in them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace colossal::data {

/// The content of a page of `size` bytes, packed by codec 0 (not), 1 (Snappy), 2 (gzip) or 6 (Zstandard).
/// Errors ("data"): another codec, damaged, another size, more than 256 MiB.
std::string unpack_page(std::string_view packed, int64_t codec, int64_t size);

/// Numbers of `width` bits: runs of one number, and packed ones (Parquet's RLE / bit-packing hybrid).
class ParquetRuns {
 public:
  ParquetRuns() = default;
  /// Errors ("data"): a width beyond 32.
  ParquetRuns(std::string_view bytes, int width);
  /// Errors ("data"): there is none.
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
