// Which files of a folder are text that a person wrote.
#pragma once
#include <string>
#include <vector>

namespace colossal::data {

/// Paths of the text files under `folder`, by ending, in the order of their names: the same list on every machine.
/// Hidden files and folders, build trees (CMakeCache.txt), `build`, `runs` and what lies at or under `excluded` are
/// left out; links are not followed.
/// Errors: throws Error("data", ...) when a folder cannot be read.
std::vector<std::string> text_files(const std::string& folder, const std::vector<std::string>& excluded);

/// ".h .cpp .md ...", for messages.
std::string text_endings();

}  // namespace colossal::data
