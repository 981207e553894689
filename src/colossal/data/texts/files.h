// The files of a folder that are text written by people, such as sources and documents.
#pragma once
#include <string>
#include <vector>

#include "colossal/data/visible_files.h"

namespace colossal::data {

/// Returns the paths of the text files under `folder`, in the order of their names, so the list is the same on every
/// machine. The ending of the name, in upper or lower case, decides whether a file is text.
///
/// The list has no hidden files. It has no files of these folders: hidden ones, build trees (CMakeCache.txt), run
/// folders (metrics.jsonl), virtual environments of Python (pyvenv.cfg), folders called `build` or `runs`. It has no
/// paths at or under `excluded`. Links are not followed. If `left_out` is not null, it counts links to files, and files
/// with other endings.
/// Errors: throws Error("data", ...) if a folder cannot be read.
std::vector<std::string> text_files(const std::string& folder, const std::vector<std::string>& excluded,
                                    LeftOut* left_out = nullptr);

/// Copies the text_files() of `folder` to a new folder `to`, under the same names, so text_files() of `to` is the same
/// list. The files are copied to `to`.partial first. An old `to` is removed after all files were copied, so `to` never
/// holds only a part of them. `folder` may also be a file of write_text_archive(), whose texts are written.
/// Errors: the same as text_files(); Error("data", ...) if a file cannot be copied.
void copy_text_files(const std::string& folder, const std::vector<std::string>& excluded, const std::string& to);

/// Returns the endings of text files, ".h .cpp .md ...", for messages.
std::string text_endings();

}  // namespace colossal::data
