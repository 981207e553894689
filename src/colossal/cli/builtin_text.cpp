#include "colossal/cli/builtin_text.h"

#include <filesystem>
#include <vector>

namespace colossal::cli {

std::string builtin_text() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path file = COLOSSAL_TEXT_FILE, sources = COLOSSAL_SOURCE_DIR;
  std::vector<fs::path> candidates{COLOSSAL_PACKED_TEXT, sources, fs::path(COLOSSAL_INSTALL_PREFIX) / file};
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (!error)  // the program is in bin, in libexec/colossal or in the Python package
    candidates.insert(candidates.begin(), {folder.parent_path() / file, folder.parent_path().parent_path() / file,
                                           folder / file.filename()});
  for (const fs::path& candidate : candidates)
    if (fs::exists(candidate, error)) return candidate;
  return sources;
}

}  // namespace colossal::cli
