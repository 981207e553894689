#include "colossal/data/texts/files.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/join.h"
#include "colossal/data/texts/text_archive.h"

namespace colossal::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEndings[] = {".h", ".cpp", ".cu", ".cuh", ".c", ".py", ".md", ".txt", ".toml", ".cmake", ".sh"};

bool is_text(const fs::path& path) {
  const std::string ending = lower_case(path.extension().string());
  return std::find(std::begin(kEndings), std::end(kEndings), ending) != std::end(kEndings);
}

bool is_skipped_folder(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name == "build" || name == "runs") return true;
  constexpr const char* kMarks[] = {"CMakeCache.txt", "metrics.jsonl", "pyvenv.cfg"};
  return std::any_of(std::begin(kMarks), std::end(kMarks), [&](const char* mark) { return fs::exists(path / mark); });
}

/// Writes a file without flushing it to the disk: the caller renames the folder, not the file.
void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw fs::filesystem_error("cannot write", path, std::error_code(errno, std::generic_category()));
}

bool is_excluded(const fs::path& path, const std::vector<fs::path>& excluded) {
  const fs::path whole = fs::weakly_canonical(path);
  return std::find(excluded.begin(), excluded.end(), whole) != excluded.end();
}

void collect(const fs::path& folder, const std::vector<fs::path>& excluded, std::vector<std::string>& files,
             LeftOut& left_out) {
  std::vector<fs::directory_entry> entries(fs::directory_iterator(folder), {});
  std::sort(entries.begin(), entries.end());
  for (const fs::directory_entry& entry : entries) {
    const fs::path& path = entry.path();
    if (path.filename().string()[0] == '.' || is_excluded(path, excluded)) continue;
    std::error_code nowhere;
    if (entry.is_symlink()) {
      if (entry.is_regular_file(nowhere)) left_out.add(path.string(), " (links)");
    } else if (entry.is_directory()) {
      if (!is_skipped_folder(path)) collect(path, excluded, files, left_out);
    } else if (entry.is_regular_file()) {
      if (is_text(path))
        files.push_back(path.string());
      else
        left_out.add(path.string());
    }
  }
}

}  // namespace

std::vector<std::string> text_files(const std::string& folder, const std::vector<std::string>& excluded,
                                    LeftOut* left_out) {
  std::vector<std::string> files;
  LeftOut others;
  try {
    std::vector<fs::path> whole;
    for (const std::string& path : excluded) whole.push_back(fs::weakly_canonical(path));
    collect(folder, whole, files, left_out != nullptr ? *left_out : others);
  } catch (const fs::filesystem_error& error) {
    throw Error("data", concat("cannot read ", error.path1().string(), ": ", error.code().message()));
  }
  return files;
}

void copy_text_files(const std::string& folder, const std::vector<std::string>& excluded, const std::string& to) {
  std::vector<std::string> files;
  std::vector<ArchivedText> texts;
  if (std::error_code none; fs::is_regular_file(folder, none))
    texts = read_text_archive(folder);
  else
    files = text_files(folder, excluded);
  // The copy is made under another name, because a copy cut short by a kill or a full disk must not be read as the
  // text.
  const fs::path partial = to + ".partial";
  try {
    fs::remove_all(partial);
    fs::create_directories(partial);
    for (const std::string& file : files) {
      const fs::path copy = partial / fs::path(file).lexically_relative(folder);
      fs::create_directories(copy.parent_path());
      fs::copy_file(file, copy);
    }
    for (const ArchivedText& text : texts) {
      fs::create_directories((partial / text.name).parent_path());
      write_text(partial / text.name, text.text);
    }
    fs::remove_all(to);
    fs::rename(partial, to);
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(partial, ignored);
    throw Error("data", concat("cannot copy the text of ", folder, " to ", to, ": ", error.path1().string(), ": ",
                               error.code().message()));
  }
}

std::string text_endings() { return join(kEndings, " "); }

}  // namespace colossal::data
