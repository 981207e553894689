// Which files of a folder are text that a person wrote.
#pragma once
#include <string>
#include <vector>

#include "colossal/data/left_out.h"

namespace colossal::data {

/// Paths of the text files under `folder`, by ending in either case, in the order of their names: the same list on
/// every machine.
/// Hidden files and folders, build trees (CMakeCache.txt), run folders (metrics.jsonl), `build`, `runs` and what lies
/// at or under `excluded` are left out; links are not followed. Links to files and files with other endings are counted
/// in `left_out`, if it is not null.
/// Errors: throws Error("data", ...) when a folder cannot be read.
std::vector<std::string> text_files(const std::string& folder, const std::vector<std::string>& excluded,
                                    LeftOut* left_out = nullptr);

/// Makes `to` a folder of copies of them, under the same names: text_files() of it is the same list. What was there
/// before is removed once all are copied (to `to`.partial): whenever that ends, `to` holds no part of them.
/// Errors: text_files()'s; Error("data", ...) when a file cannot be copied.
void copy_text_files(const std::string& folder, const std::vector<std::string>& excluded, const std::string& to);

/// ".h .cpp .md ...", for messages.
std::string text_endings();

}  // namespace colossal::data
