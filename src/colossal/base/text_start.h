// Tells text from other formats by the first bytes of a file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace colossal {

inline constexpr int64_t kTextStart = 4096;  ///< bytes that require_text() needs of a file that has as many

/// Checks that a file of text begins with `start`. Text may have any encoding without bytes of value 0.
/// Errors (`component`): bytes of a known format (gzip, Parquet, PDF, PNG, ...) or of value 0. The message names
///         `path`, the format, and how to get text.
void require_text(std::string_view start, const std::string& path, const char* component);

/// require_text() of the first bytes of a file. Errors: also those of InputFile.
void require_text_file(const std::string& path, const char* component);

}  // namespace colossal
