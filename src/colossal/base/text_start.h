// Distinguishes text from other formats by the first bytes of a file.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace colossal {

inline constexpr int64_t kTextStart = 4096;  ///< bytes that require_text() needs, or all bytes of a shorter file

/// Returns the format of a file that begins with `start`, such as "a gzip file" or "bytes of value 0". Returns nothing
/// if the file is text. Text may have any encoding without bytes of value 0.
std::optional<std::string> other_format(std::string_view start);

/// Returns other_format() of the first bytes of a file. Errors: the same as InputFile.
std::optional<std::string> other_format_of_file(const std::string& path);

/// Checks that a file of text begins with `start`.
/// Errors (`component`): a format that other_format() names (gzip, Parquet, PDF, PNG, ...). The message names `path`,
///         the format, and how to get text.
void require_text(std::string_view start, const std::string& path, const char* component);

/// Calls require_text() with the first bytes of a file. Errors: the same as require_text() and InputFile.
void require_text_file(const std::string& path, const char* component);

}  // namespace colossal
