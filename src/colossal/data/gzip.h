// Files that may be compressed with gzip.
#pragma once
#include <cstdint>
#include <string>

namespace colossal::data {

/// The content of a file: unpacked where its name ends in .gz, else as it is. Cost: all of it in memory.
/// Errors: throws Error("data", ...) when it is missing, unreadable, no gzip file though its name says so, damaged or
///         cut short, or has more than `max_bytes` unpacked.
std::string read_unpacked(const std::string& path, int64_t max_bytes);

}  // namespace colossal::data
