#include "colossal/data/texts/text_archive.h"

#include <zlib.h>

#include <charconv>
#include <filesystem>
#include <string_view>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/input_file.h"
#include "colossal/data/streams/unpacked_file.h"
#include "colossal/data/texts/files.h"

namespace colossal::data {
namespace {

constexpr std::string_view kArchiveStart = "colossal text archive 1\n";
constexpr int64_t kMaxArchiveBytes = int64_t{1} << 30;

/// Returns true if a file of that name is in the folder that an archive is unpacked to.
bool stays_in_folder(const std::string& name) {
  const std::filesystem::path path(name);
  return !path.empty() && path.is_relative() && path == path.lexically_normal() && *path.begin() != ".." &&
         path.has_filename();
}

std::string gzipped(const std::string& bytes) {
  z_stream stream{};
  constexpr int kGzip = 16 + MAX_WBITS, kMemoryLevel = 9;
  const int code = deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzip, kMemoryLevel, Z_DEFAULT_STRATEGY);
  require(code == Z_OK, "data", "no memory to compress ", bytes.size(), " bytes");
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib only reads from next_in
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);  // ends the stream, because the bound leaves room for all of it
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

}  // namespace

void write_text_archive(const std::string& folder, const std::string& path) {
  const std::vector<std::string> files = text_files(folder, {});
  require(!files.empty(), "data", folder, " holds no text files; known endings: ", text_endings());
  std::string content(kArchiveStart);
  for (const std::string& file : files) {
    const std::string name = std::filesystem::path(file).lexically_relative(folder).string();
    require(name.find('\n') == std::string::npos, "data", "file names must have no line feed: got ", name);
    const auto text = InputFile::open(file);
    require(static_cast<int64_t>(content.size()) + text->size() < kMaxArchiveBytes, "data",
            "an archive of texts must have less than 1 GiB: ", folder, " has more; remove what is no source from it");
    content += concat(text->size(), " ", name, "\n");
    content += text->content();
  }
  write_file(path, gzipped(content));
}

std::vector<ArchivedText> read_text_archive(const std::string& path) {
  const std::string content = read_unpacked(path, kMaxArchiveBytes);
  std::string_view rest = content;
  const auto check = [&](bool is_right) {
    require(is_right, "data", path, " is not a text archive: wrong content at byte ", content.size() - rest.size(),
            "; install the program again");
  };
  check(rest.starts_with(kArchiveStart));
  rest.remove_prefix(kArchiveStart.size());
  std::vector<ArchivedText> files;
  while (!rest.empty()) {
    const size_t line = rest.find('\n'), blank = rest.find(' ');
    check(line != rest.npos && blank < line);
    size_t size = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + blank, size);
    ArchivedText file{.name = std::string(rest.substr(blank + 1, line - blank - 1)), .text = {}};
    check(error == std::errc() && end == rest.data() + blank && size <= rest.size() - line - 1 &&
          stays_in_folder(file.name));
    file.text = rest.substr(line + 1, size);
    rest.remove_prefix(line + 1 + size);
    files.push_back(std::move(file));
  }
  check(!files.empty());
  return files;
}

}  // namespace colossal::data
