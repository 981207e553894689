#include "colossal/comm/compression.h"

#include "colossal/base/error.h"

namespace colossal::comm {

std::vector<std::string> compression_names() { return {"none", "fp8", "int8"}; }

std::optional<Compression> compression_of(const std::string& name) {
  if (name == "fp8") return Compression{.format = Compression::Format::E4m3, .block = 1024};
  if (name == "int8") return Compression{.format = Compression::Format::Int8, .block = 128};
  require(name == "none", "parallel", "compress must be none, fp8 or int8: got ", name);
  return std::nullopt;
}

}  // namespace colossal::comm
