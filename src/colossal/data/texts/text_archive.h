// The texts of a folder in one compressed file: the text that an installed program has for data.path = "builtin".
//
//   data::write_text_archive("colossal", "builtin_text.gz");
//   for (const data::ArchivedText& file : data::read_text_archive("builtin_text.gz"))
//     std::printf("%s: %zu bytes\n", file.name.c_str(), file.text.size());
#pragma once
#include <string>
#include <vector>

namespace colossal::data {

/// A text file of an archive.
struct ArchivedText {
  std::string name;  ///< path relative to the folder that was archived
  std::string text;  ///< all bytes of the file
};

/// Writes the text_files() of `folder` to `path`, in their order. The result depends only on their names and bytes.
/// Format: gzip (RFC 1952) of the line "colossal text archive 1", then for each file a line "BYTES NAME" and its bytes.
/// Cost: twice the texts in memory.
/// Errors: the same as text_files(), InputFile and AtomicFile; Error("data", ...) for a folder without text files, a
///         name with a line feed, or 1 GiB of text.
void write_text_archive(const std::string& folder, const std::string& path);

/// Returns the files of an archive. Cost: twice the texts in memory, at most 1 GiB each.
/// Errors: the same as UnpackedFile; Error("data", ...) if the content is not what write_text_archive() writes, or a
///         name is absolute or leaves the folder.
std::vector<ArchivedText> read_text_archive(const std::string& path);

}  // namespace colossal::data
