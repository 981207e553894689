// How numbers are written for messages of a byte an element (comm/compressed_collectives.h), and what configs call
// that.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace colossal::comm {

/// How a message is made of numbers: a code of 1 byte each, and an fp32 scale for every `block` of them, which travels
/// in front of the codes.
struct Compression {
  enum class Format {
    E4m3,  ///< error up to 2^-4 of each number. Scales are powers of two: what the format holds arrives as it is
    Int8,  ///< error up to 1/254 of the block's largest magnitude: keep blocks short where magnitudes differ
  };
  Format format = Format::E4m3;
  int64_t block = 0;  ///< elements that share a scale, 128 for instance; 0: the whole message
};

/// What a config may call them: "none", "fp8" (blocks of 1024: parameters of other magnitudes share a message), "int8"
/// (blocks of 128).
std::vector<std::string> compression_names();
/// Returns the compression of that name; nothing for "none". Errors ("parallel"): an unknown name.
std::optional<Compression> compression_of(const std::string& name);

}  // namespace colossal::comm
