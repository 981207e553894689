// The format of numbers in messages of one byte per element (comm/compressed_collectives.h), and its names in configs.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace colossal::comm {

/// The format of a message: one quantized value of 1 byte per number, and one fp32 scale per `block` numbers. The
/// scales precede the quantized values.
struct Compression {
  enum class Format {
    E4m3,  ///< error up to 2^-4 of each number. Scales are powers of two, so numbers of the format are exact
    Int8,  ///< error up to 1/254 of the block's largest magnitude: keep blocks short where magnitudes differ
  };
  Format format = Format::E4m3;
  int64_t block = 0;  ///< elements that share a scale, e.g. 128; 0 = the whole message
};

/// Returns the names that a config may use: "none", "fp8" (blocks of 1024, because parameters of other magnitudes
/// share a message), "int8" (blocks of 128).
std::vector<std::string> compression_names();
/// Returns the compression of that name; nothing for "none". Errors ("parallel"): an unknown name.
std::optional<Compression> compression_of(const std::string& name);

}  // namespace colossal::comm
