// The texts of a folder in one compressed file: the text that an installed program has for data.path = "builtin".
//
//   data::write_text_archive("colossal", "builtin_text.gz");
//   for (const data::ArchivedText& file : data::read_text_archive("builtin_text.gz"))
//     std::printf("%s: %zu bytes\n", file.name.c_str(), file.text.size());
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::data {

/// A text file of an archive.
struct ArchivedText {
  std::string name;  ///< path relative to the folder that was archived
  std::string text;  ///< all bytes of the file
};

/// A part of the texts of a folder whose size does not grow with the folder.
struct TextSelection {
  std::vector<std::string> folders{};  ///< relative paths; texts of earlier ones have precedence. Empty = all
  int64_t bytes = 0;  ///< number of bytes that are selected, if there are as many; a file may be cut. 0 = all
};

/// Returns the selection of this project's sources that data.path = "builtin" stands for: sources and tests of the
/// layers that training needs. The quick start draws about as many samples as they have. Its loss does not depend on
/// the size of the project.
TextSelection project_text();

/// Writes the selected text_files() of `folder` to `path`, in their order. The result depends only on their names and
/// bytes.
/// Format: gzip (RFC 1952) of the line "colossal text archive 1", then for each file a line "BYTES NAME" and its bytes.
/// Cost: twice the texts in memory.
/// Errors: the same as text_files(), InputFile and AtomicFile; Error("data", ...) for a selection without text files, a
///         name with a line feed, or 1 GiB of text.
void write_text_archive(const std::string& folder, const std::string& path, const TextSelection& selection = {});

/// Returns the files of an archive. Cost: twice the texts in memory, at most 1 GiB each.
/// Errors: the same as UnpackedFile; Error("data", ...) if the content is not what write_text_archive() writes, or a
///         name is absolute or leaves the folder.
std::vector<ArchivedText> read_text_archive(const std::string& path);

}  // namespace colossal::data
