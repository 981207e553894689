#include "colossal/data/texts/text_archive.h"

#include <zlib.h>

#include <algorithm>
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

/// Returns `text` without its end, cut to at most `bytes` bytes between two characters of UTF-8.
std::string_view cut_text(std::string_view text, int64_t bytes) {
  if (static_cast<int64_t>(text.size()) <= bytes) return text;
  auto end = static_cast<size_t>(bytes);
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

/// Returns the selected texts, by their names.
std::vector<ArchivedText> selected_texts(const std::string& folder, const TextSelection& selection) {
  namespace fs = std::filesystem;
  std::vector<std::string> folders = selection.folders;
  if (folders.empty()) folders.emplace_back();
  std::vector<ArchivedText> texts;
  int64_t left = selection.bytes > 0 ? selection.bytes : kMaxArchiveBytes;
  for (const std::string& part : folders)
    for (const std::string& file : text_files(part.empty() ? folder : folder + "/" + part, {})) {
      if (left == 0) break;
      const auto text = InputFile::open(file);
      require(selection.bytes > 0 || text->size() < left, "data",
              "an archive of texts must have less than 1 GiB: ", folder, " has more; remove what is no source from it");
      texts.push_back(
          {fs::path(file).lexically_relative(folder).string(), std::string(cut_text(text->content(), left))});
      left -= std::min(left, text->size());
    }
  // The order of text_files(), which reads an unpacked archive.
  std::sort(texts.begin(), texts.end(),
            [](const ArchivedText& a, const ArchivedText& b) { return fs::path(a.name) < fs::path(b.name); });
  return texts;
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

TextSelection project_text() {
  TextSelection selection{.bytes = 5'500'000};
  for (const char* layer : {"base", "tensor", "schedule", "ops", "comm", "nn", "memory", "parallel", "optim", "models",
                            "data", "checkpoint", "run", "train"})
    selection.folders.insert(selection.folders.end(), {concat("src/colossal/", layer), concat("tests/", layer)});
  return selection;
}

void write_text_archive(const std::string& folder, const std::string& path, const TextSelection& selection) {
  const std::vector<ArchivedText> texts = selected_texts(folder, selection);
  require(!texts.empty(), "data", folder, " holds no text files; known endings: ", text_endings());
  std::string content(kArchiveStart);
  for (const auto& [name, text] : texts) {
    require(name.find('\n') == std::string::npos, "data", "file names must have no line feed: got ", name);
    content += concat(text.size(), " ", name, "\n");
    content += text;
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
